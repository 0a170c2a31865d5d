"""What plugins change: tool formats, logits processors, model families, metrics sinks."""

import asyncio
import logging
import pickle
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry, Counter

from pageport import LLM, SamplingParams
from pageport.engine.async_engine import AsyncEngine
from pageport.errors import ConfigurationError, UnsupportedModel
from pageport.models.registry import decoder_spec
from pageport.sampling.processor_plugins import NamedProcessor
from pageport.server import metrics_sinks
from pageport.server.config import ServerConfig
from pageport.server.metrics_sinks import MetricsSink, Sample, SinkWriter, close_sinks
from pageport.testing.tiny_model import write_tiny_llama
from pageport.text.chat import ChatTemplate

from ..server.conftest import CHAT_TEMPLATE, ScriptedEngine, app_for, ask
from .conftest import Install
from .test_plugins import good

# A token's id is its byte.
PROCESSORS = """
    from pageport.plugins import hookimpl
    from pageport.sampling.processor_plugins import LogitsProcessorFactory

    class Only(LogitsProcessorFactory):
        name = "only"

        @classmethod
        def check(cls, arguments):
            if not isinstance(arguments.get("letter"), str):
                raise ValueError("letter must be a text")

        @classmethod
        def make(cls, arguments):
            wanted = ord(arguments["letter"])

            def only(token_ids, logits):
                if len(token_ids) >= 2 and arguments.get("breaks"):
                    raise RuntimeError("no third letter")
                return logits.new_full(logits.shape, float("-inf")).index_fill(0, logits.new_tensor([wanted]).long(), 0)

            return only

    @hookimpl
    def pageport_logits_processors():
        return [Only]
"""
CALL = '<c>{"name": "look", "arguments": {"at": 1}}'
TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("setting", ["mine", "auto"])
def test_calls_in_a_plugins_format_are_calls(install: Install, setting: str) -> None:
    install("formats", good("pageport.tool_formats"), "pageport.tool_formats", "any")
    engine = ScriptedEngine(CALL)
    engine.chat_template = ChatTemplate(CHAT_TEMPLATE + "{# <c> #}", engine.tokenizer)
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 60}
    answer = ask(app_for(engine, tool_format=setting), "POST", "/v1/chat/completions", json=body).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}


def test_a_tool_format_that_nobody_brings_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigurationError, match=r"tool-format is 'mine'; use auto, none, hermes, .*or install"):
        ServerConfig(tool_format="mine")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["absent"], "There is no logits processor 'absent' here. Known: only."),
        (["only"], "The logits processor only refuses its arguments: letter must be a text."),
        ([{"arguments": {}}], "Field required"),
        ([""], "at least 1 character"),
    ],
)
def test_a_processor_that_cannot_be_made_is_refused_by_field(install: Install, asked: list[Any], message: str) -> None:
    install("letters", PROCESSORS, "pageport.logits_processors", "any")
    body = {"prompt": "ab", "logits_processors": asked}
    answer = ask(app_for(ScriptedEngine()), "POST", "/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "logits_processors")
    assert message in error["message"]


def test_a_processor_reaches_the_engine_by_name(install: Install) -> None:
    install("letters", PROCESSORS, "pageport.logits_processors", "any")
    engine = ScriptedEngine()
    asked = [{"name": "only", "arguments": {"letter": "x"}}]
    assert ask(app_for(engine), "POST", "/v1/completions", json={"prompt": "ab", "logits_processors": asked}).is_success
    (processor,) = engine.requests[0].sampling.logits_processors or ()
    assert pickle.loads(pickle.dumps(processor)) == NamedProcessor("only", {"letter": "x"}, "plugin_of_letters:Only")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(write_tiny_llama(tmp_path_factory.mktemp("plugins") / "tiny"))) as opened:
        yield opened


def test_a_processor_decides_and_one_that_raises_fails_its_request_alone(install: Install, llm: LLM) -> None:
    install("letters", PROCESSORS, "pageport.logits_processors", "any")

    def params(*processors: NamedProcessor) -> SamplingParams:
        return SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logits_processors=processors)

    right = NamedProcessor("only", {"letter": "x"})
    wrong = NamedProcessor("only", {"letter": "y", "breaks": True})
    plain, chosen, broken = llm.generate(["a", "a", "a"], [params(), params(right), params(wrong)])
    assert chosen.outputs[0].text == "xxxx"
    assert broken.error == "logits processor only raised RuntimeError: no third letter"
    (absent,) = llm.generate("a", params(NamedProcessor("absent")))
    assert "logits processor absent raised LookupError: no installed plugin brings it; known: only" in str(absent.error)
    assert plain.outputs[0].token_ids == llm.generate("a", params())[0].outputs[0].token_ids


@pytest.mark.full
def test_a_processor_is_found_in_the_engines_process(install: Install, tmp_path: Path) -> None:
    install("letters", PROCESSORS, "pageport.logits_processors", "any")
    from pageport.config import EngineConfig

    config = EngineConfig.from_flat(model=str(write_tiny_llama(tmp_path / "tiny")))

    async def serve() -> list[tuple[int, Any]]:
        engine = await AsyncEngine.start(config)
        try:
            app = app_for(engine)  # type: ignore[arg-type]  # the real one
            bodies = [
                {"prompt": "a", "max_tokens": 4, "logits_processors": [{"name": "only", "arguments": arguments}]}
                for arguments in ({"letter": "x"}, {"letter": "y", "breaks": True})
            ]
            answers = await asyncio.gather(*(_post(app, body) for body in bodies))
            return [(answer.status_code, answer.json()) for answer in answers]
        finally:
            await engine.close()

    (right_status, right), (wrong_status, wrong) = asyncio.run(serve())
    assert (right_status, right["choices"][0]["text"]) == (200, "xxxx")
    assert (wrong_status, "raised RuntimeError: no third letter" in wrong["error"]["message"]) == (500, True)


async def _post(app: Any, body: Any) -> Any:
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.post("/v1/completions", json=body, timeout=60)


FAMILY = """
    from pageport.models.architectures import llama
    from pageport.models.family_plugins import ModelFamily
    from pageport.plugins import hookimpl

    def describe(config, names):
        return llama.decoder_spec({**config, "num_hidden_layers": config["depth"]}, names)

    @hookimpl
    def pageport_model_families():
        return [ModelFamily(architectures=("DeepForCausalLM",), decoder_spec=describe)]
"""
CONFIG = {"architectures": ["DeepForCausalLM"], "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 6,
          "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "vocab_size": 259,
          "max_position_embeddings": 64}  # fmt: skip


def test_a_models_family_is_described_by_its_plugin(install: Install) -> None:
    install("deep", FAMILY, "pageport.model_families", "any")
    assert len(decoder_spec({**CONFIG, "depth": 3}, frozenset()).layers) == 3
    with pytest.raises(UnsupportedModel, match=r"family DeepForCausalLM of deep 3.1 cannot .* KeyError: 'depth'"):
        decoder_spec(CONFIG, frozenset())


def test_an_unknown_architecture_is_told_with_the_plugins_and_what_is_wrong_with_them(install: Install) -> None:
    install("deep", FAMILY, "pageport.model_families", "any")
    install("broken", "x = 1", "pageport.model_families", "bad")
    with pytest.raises(UnsupportedModel, match=r"Qwen3ForCausalLM, DeepForCausalLM\. bad \(broken 3.1\): its plugin"):
        decoder_spec({"architectures": ["FlatForCausalLM"]}, frozenset())


class Sink(MetricsSink):
    """Keeps what it gets; the first time it fails."""

    name = "kept"
    interval_s = 0.01
    writes: ClassVar[list[list[Sample]]] = []
    is_closed = False

    def write(self, samples: Iterable[Sample]) -> None:
        Sink.writes.append(list(samples))
        if len(Sink.writes) < 3:
            raise OSError("no route")

    def close(self) -> None:
        Sink.is_closed = True


def test_a_sink_gets_all_samples_again_and_again_also_after_failures(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "How many.", ["kind"], registry=registry)
    writer = SinkWriter(Sink, registry)
    while len(Sink.writes) < 4:
        time.sleep(0.005)
    counter.labels("late").inc(7)
    close_sinks([writer])
    assert Sample("seen_total", {"kind": "late"}, 7.0) in Sink.writes[-1]
    assert Sink.is_closed
    assert sum("kept failed" in record.message for record in caplog.records) == 1


class Hanging(MetricsSink):
    name = "hanging"
    interval_s = 0.001

    def write(self, samples: Iterable[Sample]) -> None:
        time.sleep(5)


class Unopened(MetricsSink):
    name = "unopened"

    def __init__(self) -> None:
        raise OSError("no such host")

    def write(self, samples: Iterable[Sample]) -> None:
        raise AssertionError("it was never opened")


def test_sinks_that_hang_or_cannot_be_opened_hold_up_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_sinks, "CLOSE_TIMEOUT_S", 0.1)
    writers = [SinkWriter(Hanging, CollectorRegistry()), SinkWriter(Unopened, CollectorRegistry())]
    time.sleep(0.05)
    start = time.monotonic()
    close_sinks(writers)
    assert time.monotonic() - start < 1
    assert "unopened cannot be opened" in caplog.text


def test_a_server_writes_its_metrics_to_the_sinks_of_plugins(install: Install, tmp_path: Path) -> None:
    source = good("pageport.metrics_sinks").replace(
        "pass", f"open({str(tmp_path / 'out')!r}, 'a').write(repr(samples))"
    )
    install("sink", source, "pageport.metrics_sinks", "any")
    app = app_for(ScriptedEngine())
    assert ask(app, "POST", "/v1/completions", json={"prompt": "ab", "max_tokens": 2}).is_success
    app.state.service.close()
    assert "pageport:time_to_first_token_seconds_count" in (tmp_path / "out").read_text()


def test_a_broken_plugin_is_a_warning_of_the_server(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("broken", "x = 1", "pageport.tool_formats", "bad")
    with caplog.at_level(logging.WARNING):
        assert ask(app_for(ScriptedEngine()), "GET", "/v1/models").is_success
    assert "The tool format bad (broken 3.1) cannot be used: its plugin" in caplog.text
