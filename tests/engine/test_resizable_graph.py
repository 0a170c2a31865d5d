"""A step captured once says in any size what steps run op by op say."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pageport.backend.device import Device
from pageport.backend.graph import Graph, StepSize
from pageport.cache.layout import GroupLayout
from pageport.engine.resizable_graph import ResizableGraph
from pageport.engine.step_buffers import DecodeStep, StepBuffers
from pageport.models.inputs import ModelInputs
from pageport.testing.conformance.graph_check import counted_replays
from pageport.testing.conformance.tiny_engine import Answers, TinyEngine, TinyModel, request
from pageport.testing.reference_device import ReferenceDevice
from pageport_cpu.plugin import CpuBackend

MODELS = [
    pytest.param(TinyModel(), id="llama"),
    pytest.param(TinyModel(sliding_window=6), id="mistral", marks=pytest.mark.full),
    pytest.param(TinyModel(architecture="gpt2"), id="gpt2", marks=pytest.mark.full),
]


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = CpuBackend().open(0, {"threads": "1"})
    assert opened.capabilities.graphs_resize
    yield opened
    opened.close()


def _said(answers: Answers) -> Any:
    return {
        who: (answer.tokens, [row.tolist() for row in answer.logprobs], answer.error) for who, answer in answers.items()
    }


def _staggered(engine: TinyEngine) -> None:
    """Let requests come and end at different steps: alone, together, in chunks, beside decodes."""
    prompts = [torch.arange(length).mul(7 + length).remainder(256).tolist() for length in (1, 9, 4, 23, 5)]
    waiting = [request(f"{i}", prompt, max_tokens=4 + 3 * i) for i, prompt in enumerate(prompts)]

    def add_one(step: int) -> None:
        if waiting and step % 3 == 2:
            engine.add(waiting.pop())

    engine.run(waiting.pop(), before_step=add_one)
    engine.run(request("scored", prompts[3], max_tokens=3, prompt_logprobs=0), request("beside", [5, 6], max_tokens=9))


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_bitwise_those_of_steps_run_op_by_op(device, model):
    heard = []
    with counted_replays(device) as count:
        for eager in (True, False):
            with TinyEngine(device, model, block_size=16, max_num_batched_tokens=8, enforce_eager=eager) as engine:
                _staggered(engine)
                heard.append(_said(engine.answers))
    assert heard[0] == heard[1]
    assert count.replays > 15


class _Recorder(Graph):
    has_run = True

    def __init__(self, run: Callable[[], None], events: list[Any]) -> None:
        self._run, self._events = run, events

    def replay(self) -> None:
        self._events.append("replay")

    def resize(self, captured: StepSize, size: StepSize) -> None:
        self._events.append((tuple(captured), tuple(size)))


class _RecordingDevice(ReferenceDevice):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def capture(self, run: Callable[[], None]) -> Graph:
        run()
        self.events.append("capture")
        return _Recorder(run, self.events)


def _step(num_tokens: int, num_requests: int) -> DecodeStep:
    buffers = StepBuffers(
        [GroupLayout(num_blocks=4, block_size=4)],
        max_num_seqs=8,
        max_tokens=16,
        max_model_len=16,
        device=torch.device("cpu"),
        num_stages=1,
    )
    inputs = ModelInputs(token_ids=torch.zeros(num_tokens, dtype=torch.int64), positions=torch.arange(num_tokens))
    return DecodeStep(inputs, buffers.decode_step(num_requests).batches)


def test_the_first_step_is_captured_and_every_later_one_replayed_in_its_size():
    device, logits = _RecordingDevice(), torch.arange(40.0).view(8, 5)
    graph = ResizableGraph(device, lambda step, wanted: logits[: len(wanted), :3])
    shapes = [
        graph.run(_step(*sizes), torch.arange(wanted)).tolist() for *sizes, wanted in ((7, 3, 2), (9, 4, 4), (5, 2, 0))
    ]
    assert shapes == [logits[:rows, :3].tolist() for rows in (2, 4, 0)]
    assert device.events == ["capture", ((7, 3, 2), (9, 4, 4)), "replay", ((7, 3, 2), (5, 2, 0)), "replay"]


def test_a_step_of_which_nothing_is_wanted_is_not_captured():
    device = _RecordingDevice()
    ResizableGraph(device, lambda step, wanted: torch.zeros(len(wanted), 3)).run(_step(4, 1), torch.arange(0))
    assert device.events == []
