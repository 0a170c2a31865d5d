"""Captured decode steps say what steps run op by op say, and are really replayed."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.graph import Graph
from pageport.backend.op_table import OpTable, compile_ops
from pageport.engine import builder
from pageport.engine.step_buffers import DecodeStep
from pageport.engine.step_graphs import MAX_GRAPHS, StepGraphs
from pageport.models.inputs import ModelInputs
from pageport.testing.conformance.tiny_engine import Answers, TinyEngine, TinyModel, beam_request, request
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.replaying_device import ReplayingDevice
from pageport.testing.static_device import StaticDevice
from pageport_cpu.plugin import CpuBackend

LLAMA = TinyModel()
GPT2 = TinyModel(architecture="gpt2")
MISTRAL = TinyModel(sliding_window=6)
BLOCK = 4


class StrictDevice(ReplayingDevice):
    """Fails when a replay calls other ops, or calls them with other addresses, shapes or numbers, than the capture."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] | None = None
        self.other_numbers = 0

    def watch(self, ops: OpTable) -> OpTable:
        functions = {field.name: getattr(ops, field.name) for field in fields(ops)}
        watched = {name: self._watched(name, f) for name, f in functions.items() if callable(f)}
        return replace(ops, **watched)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.calls is not None:
                self.calls.append((name, [*map(described, arguments), *map(described, named.values())]))
            return function(*arguments, **named)

        return call

    def capture(self, run: Callable[[], None]) -> Graph:
        recorded: list[Any] = []

        def run_as_recorded() -> None:
            self.calls = []
            try:
                run()
                recorded[:] = recorded or self.calls
                assert self.calls == recorded, "a replay differs from its capture"
            finally:
                self.calls = None

        return super().capture(run_as_recorded)


def described(argument: Any) -> Any:
    if isinstance(argument, AttentionBatch):
        assert argument.host.seq_lens.size == 0, "a captured step has a host mirror"
        named = {field.name: getattr(argument, field.name) for field in fields(argument)}
        return [described(value) for name, value in named.items() if name not in ("plan", "host")]
    if isinstance(argument, Tensor):
        return argument.data_ptr(), argument.shape, argument.stride(), argument.dtype
    return argument if isinstance(argument, int | float | bool | None) else id(argument)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StrictDevice:
    strict = StrictDevice()
    monkeypatch.setattr(builder, "compile_ops", lambda device, **options: strict.watch(compile_ops(device, **options)))
    return strict


def prompts(*lengths: int) -> Iterator[tuple[str, list[int]]]:
    generator = torch.Generator().manual_seed(sum(lengths))
    for place, length in enumerate(lengths):
        yield f"{place}", torch.randint(256, (length,), generator=generator).tolist()


def said(answers: Answers) -> dict[tuple[str, int], Any]:
    """Return tokens and, bit by bit, logprobs."""
    return {
        who: (answer.tokens, [row.tolist() for row in answer.logprobs], answer.error) for who, answer in answers.items()
    }


def run_both(
    device: ReplayingDevice, model: TinyModel, drive: Callable[[TinyEngine], object], **settings: Any
) -> tuple[Any, Any]:
    """Drive one engine with graphs and one without, and return what they said."""
    heard = []
    for eager in (False, True):
        before = device.num_replays
        with TinyEngine(device, model, block_size=BLOCK, enforce_eager=eager, **settings) as engine:
            drive(engine)
            engine.engine.check()
            assert engine.stats().kv_blocks_used == 0
            heard.append(said(engine.answers))
        assert (device.num_replays > before) is not eager
    return heard[0], heard[1]


def staggered(engine: TinyEngine) -> None:
    """Let requests come and end at different steps, so that sizes change and prefills fall between decodes."""
    waiting = [request(name, prompt, max_tokens=8 + 2 * len(prompt)) for name, prompt in prompts(1, 3, 4, 5, 9)]

    def add_one(step: int) -> None:
        if waiting and step % 6 == 5:
            engine.add(waiting.pop())

    engine.run(waiting.pop(), before_step=add_one)
    engine.run(*waiting)


def forked(engine: TinyEngine) -> None:
    (_, prompt), *_ = prompts(BLOCK + 2)
    engine.run(request("n", prompt, n=4, temperature=5.0, seed=3, max_tokens=3 * BLOCK))


def searched(engine: TinyEngine) -> None:
    (_, prompt), *_ = prompts(BLOCK + 1)
    engine.run(beam_request("beams", prompt, width=3, max_tokens=2 * BLOCK))


def crowded(engine: TinyEngine) -> None:
    engine.run(*(request(name, prompt, max_tokens=5 * BLOCK) for name, prompt in prompts(5, 6, 7, 8, 9, 10)))


def aborted(engine: TinyEngine) -> None:
    def abort(step: int) -> None:
        if step in (4, 7):
            engine.engine.abort(f"{step % 4}")

    engine.run(*(request(n, p, max_tokens=20) for n, p in prompts(3, 4, 5, 6)), before_step=abort)


def repeated(engine: TinyEngine) -> None:
    (_, prompt), *_ = prompts(3 * BLOCK)
    for turn in range(3):
        engine.run(request(f"{turn}", prompt, max_tokens=6), request(f"{turn} longer", [*prompt, 7], max_tokens=9))


def scored(engine: TinyEngine) -> None:
    """Score prompts, which takes more logit rows than decoding does, between decodes."""
    (_, prompt), *_ = prompts(50)
    for turn in range(3):
        engine.run(request(f"decode {turn}", prompt[:3], max_tokens=5))
        engine.run(request(f"scored {turn}", prompt, max_tokens=4, prompt_logprobs=-1))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("model", [LLAMA, GPT2, MISTRAL], ids=["llama", "gpt2", "mistral"])
def test_answers_are_those_of_steps_run_op_by_op(device, model, depth):
    replayed, eager = run_both(device, model, staggered, pipeline_depth=depth)
    assert replayed == eager
    assert device.num_replays > 2 * device.num_captures


@pytest.mark.parametrize(
    ("drive", "settings"),
    [
        (forked, {}),
        (searched, {}),
        (aborted, {}),
        (scored, {}),
        (crowded, {"num_kv_blocks": 20, "max_model_len": 8 * BLOCK}),
        (crowded, {"num_kv_blocks": 20, "max_model_len": 8 * BLOCK, "swap_space": 0.05}),
        (repeated, {"enable_prefix_caching": True}),
        (crowded, {"max_num_batched_tokens": 7}),
    ],
    ids=["forks", "beams", "aborts", "scored prompts", "preempted", "swapped", "prefix hits", "chunks"],
)
def test_whatever_happens_between_decodes_the_answers_are_the_same(device, drive, settings):
    replayed, eager = run_both(device, LLAMA, drive, **settings)
    assert replayed == eager


def test_second_step_of_a_size_is_captured_and_replayed():
    device = ReplayingDevice()
    (_, prompt), *_ = prompts(3)
    with TinyEngine(device, LLAMA, block_size=BLOCK) as engine:
        counts = []
        engine.run(
            request("r", prompt, max_tokens=6),
            before_step=lambda step: counts.append((device.num_captures, device.num_replays)),
        )
    # A prefill, a decode by ops, then replays.
    assert counts == [(0, 0), (0, 0), (0, 0), (1, 1), (1, 2), (1, 3)]


def test_steps_with_prefills_are_never_captured():
    device = ReplayingDevice()
    (_, prompt), *_ = prompts(30)
    with TinyEngine(device, LLAMA, block_size=BLOCK, max_num_batched_tokens=2) as engine:
        engine.run(request("alone", prompt, max_tokens=1))
    assert (device.num_captures, device.num_replays) == (0, 0)


def test_two_engines_on_one_device_keep_their_graphs_apart(device):
    def run(model: TinyModel) -> dict[tuple[str, int], Any]:
        with TinyEngine(device, model, block_size=BLOCK) as engine:
            crowded(engine)
            return said(engine.answers)

    alone = [run(LLAMA), run(GPT2)]
    with TinyEngine(device, LLAMA, block_size=BLOCK) as one, TinyEngine(device, GPT2, block_size=BLOCK) as other:
        for name, prompt in prompts(5, 6, 7, 8, 9, 10):
            one.add(request(name, prompt, max_tokens=5 * BLOCK))
            other.add(request(name, prompt, max_tokens=5 * BLOCK))
        while one.engine.has_work or other.engine.has_work:
            one.step()
            other.step()
        assert [said(one.answers), said(other.answers)] == alone


def test_error_while_capturing_ends_the_step_and_the_next_one_is_captured():
    class FailsOnce(ReplayingDevice):
        has_failed = False

        def capture(self, run: Callable[[], None]) -> Graph:
            if not self.has_failed:
                self.has_failed = True
                raise RuntimeError("out of graph memory")
            return super().capture(run)

    device = FailsOnce()
    (_, prompt), *_ = prompts(3)
    with TinyEngine(device, LLAMA, block_size=BLOCK) as engine:
        engine.run(request("struck", prompt, max_tokens=6))
        engine.run(request("next", prompt, max_tokens=6))
        assert "out of graph memory" in engine.answers["struck", 0].error
        assert engine.answers["next", 0].error is None
    assert device.num_replays > 0


def test_least_recently_used_graph_makes_room():
    device = ReplayingDevice()
    graphs = StepGraphs(device, decode_step, lambda step: step.inputs.positions + 1, max_graphs=2)
    for size in (1, 1, 2, 2, 1, 3, 3):
        assert graphs.run(decode_step(size)).tolist() == list(range(1, size + 1))
    assert graphs.sizes == (1, 3)
    graphs.run(decode_step(2))
    assert (graphs.sizes, device.num_captures, device.num_replays) == ((3, 2), 4, 5)
    assert MAX_GRAPHS == 64


@pytest.mark.parametrize(("num_requests", "size"), [(1, 1), (2, 4), (4, 4), (5, 8), (8, 8), (9, 9), (10, 10)], ids=str)
def test_steps_are_filled_up_to_the_next_size(num_requests, size):
    graphs = StepGraphs(ReplayingDevice(), decode_step, Tensor.double, sizes=(1, 4, 8), max_rows=10)
    assert graphs.padded_size(num_requests) == size
    assert StepGraphs(ReplayingDevice(), decode_step, Tensor.double, sizes=(16,), max_rows=10).padded_size(3) == 10


@pytest.mark.parametrize(
    ("model", "drive", "settings"),
    [
        (LLAMA, staggered, {"pipeline_depth": 1}),
        (MISTRAL, forked, {}),
        (GPT2, crowded, {"num_kv_blocks": 20, "max_model_len": 8 * BLOCK, "swap_space": 0.05}),
    ],
    ids=["staggered", "forks", "swapped"],
)
def test_padded_steps_say_the_same_with_fewer_graphs(model, drive, settings):
    device = ReplayingDevice(graph_sizes=(4, 7))
    replayed, eager = run_both(device, model, drive, **settings)
    assert device.num_captures <= 2
    for who, (tokens, logprobs, error) in eager.items():
        assert replayed[who][::2] == (tokens, error)
        # Products of more rows round differently.
        torch.testing.assert_close(torch.tensor(replayed[who][1]), torch.tensor(logprobs), rtol=0, atol=1e-4)


def decode_step(size: int) -> DecodeStep:
    return DecodeStep(ModelInputs(token_ids=torch.zeros(size, dtype=torch.int64), positions=torch.arange(size)), [])


@pytest.mark.parametrize(
    ("open_device", "eager", "words"),
    [
        (ReplayingDevice, False, "decodes replayed, from a capture a batch size (--enforce-eager turns it off)"),
        (
            lambda: CpuBackend().open(0, {"threads": "1"}),
            False,
            "replayed in any size (--enforce-eager turns it off)",
        ),
        (ReplayingDevice, True, "op by op, as --enforce-eager says"),
        (ReferenceDevice, False, "op by op: the backend replays no graphs"),
        (
            lambda: StaticDevice((8,), (2,), (64,)),
            False,
            "whole programs, 2 compiled: 2 decodes or 8 tokens of a prompt",
        ),
    ],
    ids=["by size", "in any size", "eager", "without graphs", "programs"],
)
def test_summary_says_how_steps_are_computed(open_device, eager, words, tmp_path):
    LLAMA.write(tmp_path)
    config = builder.EngineConfig.from_flat(
        model=str(tmp_path),
        enforce_eager=eager,
        num_kv_blocks=8,
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=8,
    )
    built = builder.build_engine_on(open_device(), builder.open_model(config.model), config, backend_name="test")
    built.close()
    assert words in built.info.summary[-1]
