"""Engines on several backends in one process know nothing of each other."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pageport import LLM, SamplingParams
from pageport.config import EngineConfig
from pageport.engine.builder import BuiltEngine, build_engine, build_engine_on, open_model
from pageport.engine.messages import EngineRequest
from pageport.testing.static_device import StaticDevice
from pageport.testing.tiny_model import write_tiny_llama

# In which all of them keep and compute everything.
SETTINGS = {"dtype": "float32", "num_kv_blocks": 64, "max_num_seqs": 8, "max_model_len": 256}
PROMPTS = [[3, 5, 8, 13, 21], list(range(40)), [7] * 17]


class Served:
    """An engine with what it has said so far, by request."""

    def __init__(self, built: BuiltEngine) -> None:
        self.built = built
        self.tokens: dict[str, list[int]] = {}

    def add(self, *names: str) -> None:
        for name, prompt in zip(names, PROMPTS, strict=False):
            sampling = SamplingParams(temperature=0)
            request = EngineRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, max_tokens=20, seed=0)
            self.built.engine.add(request)
            self.tokens[name] = []

    def step(self) -> None:
        for output in self.built.engine.step().outputs:
            assert output.error is None
            self.tokens[output.request_id] += output.token_ids

    def finish(self) -> list[list[int]]:
        while self.built.engine.has_work:
            self.step()
        return list(self.tokens.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def open_engine(
    model: str,
    plugin: dict[str, str],
    unpack: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unchecked_shapes: None,
) -> Iterator[Callable[[str], Served]]:
    """Return a function that opens engines by the backend's name, ``example`` being installed."""
    monkeypatch.syspath_prepend(str(unpack(tmp_path, plugin, "pageport-example", "example = pageport_example.plugin")))
    opened: list[BuiltEngine] = []

    def open_one(backend: str) -> Served:
        config = EngineConfig.from_flat(model=model, backend=backend, **SETTINGS)
        if backend == "static":
            opened.append(build_engine_on(StaticDevice(), open_model(config.model), config, backend_name=backend))
        else:
            opened.append(build_engine(config))
        return Served(opened[-1])

    yield open_one
    for built in opened:
        built.close()


@pytest.fixture
def expected(open_engine: Callable[[str], Served]) -> list[list[int]]:
    alone = open_engine("cpu")
    alone.add("a", "b", "c")
    return alone.finish()


def test_steps_of_several_backends_may_alternate(
    open_engine: Callable[[str], Served], expected: list[list[int]]
) -> None:
    engines = [open_engine(name) for name in ("cpu", "example", "static")]
    assert [engine.built.info.backend for engine in engines] == ["cpu", "example", "static"]
    for engine in engines:
        engine.add("a", "b", "c")
    while any(engine.built.engine.has_work for engine in engines):
        for engine in engines:
            engine.step()
            engine.built.engine.check()
    assert [engine.finish() for engine in engines] == [expected] * 3
    assert expected[0] != expected[1]


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closing_one_leaves_the_others_at_work(
    open_engine: Callable[[str], Served], expected: list[list[int]], closed: int
) -> None:
    engines = [open_engine(name) for name in ("cpu", "example", "static")]
    for engine in engines:
        engine.add("a", "b", "c")
        for _ in range(5):
            engine.step()
    engines.pop(closed).built.close()
    assert [engine.finish() for engine in engines] == [expected] * 2


def test_two_llms_answer_at_the_same_time(
    model: str, open_engine: Callable[[str], Served], expected: list[list[int]]
) -> None:
    llms = [LLM(model, backend=name, **SETTINGS) for name in ("cpu", "example")]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    answers: list[list[list[int]]] = [[], []]

    def ask(which: int) -> None:
        outputs = llms[which].generate(PROMPTS, params, use_tqdm=False)
        answers[which] = [output.outputs[0].token_ids for output in outputs]

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected, expected]
    llms[0].close()
    answers[1].clear()
    ask(1)
    assert answers[1] == expected
    llms[1].close()
