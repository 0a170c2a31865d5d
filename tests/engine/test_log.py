"""Lines of the log, for people and for programs."""

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from pageport.engine.log import JsonFormatter, TextFormatter, open_log, with_fields
from pageport.errors import ConfigurationError


def record(message: str, *arguments: Any, **fields: Any) -> logging.LogRecord:
    logger = logging.getLogger("pageport.some")
    return logger.makeRecord(logger.name, logging.INFO, "", 0, message, arguments, None, extra=with_fields(**fields))


def test_text_lines_show_fields_as_words() -> None:
    line = TextFormatter().format(record("%d done", 3, name="a b", seconds=0.123456, none=None, reason='say "x"', n=7))
    assert line == 'INFO 3 done name="a b" seconds=0.1235 reason="say \\"x\\"" n=7'


@pytest.mark.parametrize("value", ["a\nINFO forged", "\x1b[31m", "é\u2028", "", "a=b"])
def test_no_value_ends_a_text_line_or_looks_like_a_field(value: str) -> None:
    line = TextFormatter().format(record("x", name=value))
    assert line.isascii()
    assert json.loads(line.removeprefix("INFO x name=")) == value


def test_json_lines_are_one_object_each() -> None:
    line = JsonFormatter().format(record("%s\n\u2028é", "first", tokens=3, choices=["a"], none=None))
    assert line.isascii()
    assert "\n" not in line
    entry = json.loads(line)
    assert entry.pop("time").endswith("+00:00")
    assert entry.pop("process_id") > 0
    assert entry == {
        "level": "INFO", "logger": "pageport.some", "message": "first\n\u2028é", "tokens": 3, "choices": ["a"],
    }  # fmt: skip


def test_json_lines_hold_tracebacks() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        logger = logging.getLogger("x")
        line = JsonFormatter().format(logger.makeRecord("x", logging.ERROR, "", 0, "it", (), sys.exc_info()))
    assert json.loads(line)["exception"].endswith("ValueError: broken")


def test_a_process_started_by_another_writes_as_that_one_does() -> None:
    """Also what other packages log or warn of."""
    opens = "from pageport.engine.log import open_log; open_log"
    child = f"import logging; {opens}(); logging.getLogger('x').error('child')"
    code = (
        f"import subprocess, sys, warnings; {opens}('json')\n"
        f"warnings.warn('old'); subprocess.run([sys.executable, '-c', {child!r}])"
    )
    written = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    warning, line = [json.loads(line) for line in written.splitlines()]
    assert "old" in warning["message"]
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "x", "child")


def test_a_level_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEPORT_LOG_LEVEL", "loud")
    with pytest.raises(ConfigurationError, match="PAGEPORT_LOG_LEVEL is 'LOUD'; use DEBUG"):
        open_log()
