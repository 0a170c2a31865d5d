"""``--config``: options from a YAML file."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from pageport.cli.app import ENGINE
from pageport.cli.options import with_settings
from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig


def parsed(*arguments: str) -> dict[str, Any]:
    """Return what a command with all options of ``pageport serve`` and one of its own is called with."""
    seen: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @with_settings(*ENGINE, ServerConfig, positional_model=True)
    def command(own: Annotated[int | None, typer.Option("--own-count")] = None, **settings: Any) -> None:
        seen.update(settings, own=own)

    ended = CliRunner().invoke(app, list(arguments))
    if isinstance(ended.exception, ConfigurationError):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "serve.yaml"


def test_a_file_sets_every_kind_of_option(file: Path) -> None:
    file.write_text(
        "model: tiny\nport: 81\ngpu-memory-utilization: 1\nrequest_timeout: 2.5\nrestart-engine: false\n"
        "strict_ops: true\napi-key: [first, second]\nbackend-options: a=1\ntool_format: none\nmax-model-len: null\n"
        "own-count: 3\n"
    )
    expected = {
        "model": "tiny", "port": 81, "gpu_memory_utilization": 1.0, "request_timeout": 2.5, "restart_engine": False,
        "strict_ops": True, "api_key": ("first", "second"), "backend_options": ("a=1",), "tool_format": "none",
        "max_model_len": None, "own": 3,
    }  # fmt: skip
    settings = parsed("--config", str(file))
    assert {name: settings[name] for name in expected} == expected
    assert type(settings["gpu_memory_utilization"]) is float


def test_every_setting_can_be_set_by_its_name(file: Path) -> None:
    """Whatever is declared as a setting: its default, written into a file, is taken as it is."""
    declared = [field for config in (*ENGINE, ServerConfig) for field in fields(config)]
    values = {field.name: list(field.default) if field.default == () else field.default for field in declared}
    file.write_text("".join(f"{name}: {_as_yaml(value)}\n" for name, value in values.items()))
    settings = parsed("--config", str(file))
    assert {name: settings[name] for name in values} == {field.name: field.default for field in declared}


def _as_yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def test_without_a_file_the_defaults_stand() -> None:
    settings = parsed()
    assert (settings["port"], settings["restart_engine"], settings["api_key"]) == (8000, True, ())


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--port", "8000"], "port", 8000),  # the default, said all the same
        (["--restart-engine"], "restart_engine", True),
        (["--api-key", "c"], "api_key", ("c",)),
        (["--model", "m"], "model", "m"),
        (["m"], "model", "m"),
        (["--own-count", "1"], "own", 1),
        (["--shutdown-timeout", "1"], "drain_timeout", 1.0),
    ],
)
def test_the_command_line_wins(file: Path, arguments: list[str], name: str, value: Any) -> None:
    file.write_text(
        "port: 1\nrestart-engine: false\napi-key: [a, b]\nmodel: f\nown_count: 9\ndrain-timeout: 5\nhost: ::1\n"
    )
    settings = parsed("--config", str(file), *arguments)
    assert settings[name] == value
    assert settings["host"] == "::1"


def test_other_spellings_of_an_option_are_keys_too(file: Path) -> None:
    file.write_text("disable-uvicorn-access-log: true\nnum-gpu-blocks-override: 7\n")
    settings = parsed("--config", str(file))
    assert (settings["disable_log_requests"], settings["num_kv_blocks"]) == (True, 7)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xef\xbb\xbfport: 5\r\nhost: h\r\n"])
def test_files_of_any_editor_are_read(file: Path, content: bytes) -> None:
    """NET-05."""
    file.write_bytes(content)
    assert parsed("--config", str(file))["port"] == (5 if content.startswith(b"\xef") else 8000)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("prot: 1", "prot is no option of this command. Did you mean port?"),
        ("max_model_length: 1", "max_model_length is no option of this command. Did you mean max-model-len?"),
        ("no-restart-engine: true", "Write restart-engine: false."),
        ("qqqqqq: 1", "--help"),
        ("config: other.yaml", "config is no option"),
        ("help: true", "help is no option"),
        ("model_argument: x", "model_argument is no option"),
        ("port: x", "port is 'x'; it must be a whole number."),
        ("port: true", "port is True; it must be a whole number."),
        ("port: 80.5", "port is 80.5; it must be a whole number."),
        ("port: [1, 2]", "port is [1, 2]; it must be a whole number."),
        ("swap-space: much", "swap-space is 'much'; it must be a number."),
        ("strict_ops: 1", "strict_ops is 1; write true or false."),
        ("revision: 1.10", "revision is read as a number; it must be a text: put it in quotes."),
        ("revision: 2024-01-02", "revision is read as a date; it must be a text: put it in quotes."),
        ("host: no", "host is read as true or false; it must be a text: put it in quotes."),
        ("api-key: [a, 1]", "api-key is read as a number; it must be a text: put it in quotes."),
        ("model: {a: 1}", "model is read as several values; it must be a text"),
        ("scheduling_policy: prio", "scheduling_policy is 'prio'; use one of fcfs, priority."),
        ("host: a\nhost: b", "line 3: host is there a second time."),
        ("max-model-len: 1\nmax_model_len: 2", "line 3: max_model_len is there a second time."),
    ],
)
def test_a_wrong_line_is_told_with_its_place(file: Path, line: str, told: str) -> None:
    file.write_text(f"seed: 1\n{line}\n")
    with pytest.raises(ConfigurationError) as refused:
        parsed("--config", str(file))
    assert told in str(refused.value)
    assert str(refused.value).startswith(f"{file}, line {1 + len(line.splitlines())}: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"port: [1\nhost: x\n", "line 2 is no YAML"),
        (b"a: &x 1\nport: *y\n", "line 2 is no YAML"),
        (b"- port\n", "must hold lines like"),
        (b"port\n", "must hold lines like"),
        (b"a: !!python/object:os.system {}\n", "is no YAML"),
        (b"port: 1\n---\nport: 2\n", "is no YAML"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"port: \x01\n", "is no YAML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_none_is_told_in_one_line(file: Path, content: bytes | None, told: str) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told) as refused:
        parsed("--config", str(file))
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)
