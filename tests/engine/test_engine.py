"""The step loop over a null device: failures, deadlines, steps in flight."""

import pytest

from pageport.cache.block_manager import BlockManager
from pageport.cache.layout import GroupLayout
from pageport.config import SchedulerConfig
from pageport.engine.engine import Engine
from pageport.engine.messages import EngineRequest, SequenceOutput
from pageport.engine.runner import PendingStep, Runner
from pageport.sampling.params import SamplingParams
from pageport.scheduling.batch import Batch, StepResult
from pageport.scheduling.scheduler import Scheduler
from pageport.testing.null_runner import NullRunner

LAYOUTS = [GroupLayout(num_blocks=64, block_size=4)]


class FlakyRunner(Runner):
    """A null device whose steps named in ``failing`` raise, when submitted or when their result is asked for."""

    def __init__(self, failing: set[int], *, late: bool = False) -> None:
        self._inner = NullRunner(LAYOUTS, max_num_seqs=8)
        self._failing = failing
        self._late = late

    def submit(self, batch: Batch) -> PendingStep:
        if batch.step not in self._failing:
            return self._inner.submit(batch)
        if self._late:
            return _FailsLate()
        raise RuntimeError("the device fell off the bus")


class _FailsLate(PendingStep):
    def result(self) -> StepResult:
        raise RuntimeError("the device fell off the bus")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_engine(runner: Runner, depth: int = 0, clock: Clock | None = None) -> Engine:
    clock = clock or Clock()
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32)
    scheduler = Scheduler(
        config, BlockManager(LAYOUTS, max_tokens_per_step=32), pipeline_depth=depth, clock=clock, max_model_len=200
    )
    return Engine(scheduler, runner, config, pipeline_depth=depth, clock=clock)


def request(request_id: str, *, n: int = 1, timeout_s: float | None = None) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[1, 2, 3, 4, 5],
        sampling=SamplingParams(n=n),
        max_tokens=6,
        seed=0,
        timeout_s=timeout_s,
    )


def run(engine: Engine, steps: int = 50) -> list[SequenceOutput]:
    outputs = []
    for _ in range(steps):
        if not engine.has_work:
            return outputs
        outputs += engine.step().outputs
        engine.check()
    raise AssertionError("the engine never came to rest")


def ends(outputs: list[SequenceOutput]) -> dict[tuple[str, int], str]:
    return {(o.request_id, o.index): o.finish_reason for o in outputs if o.finish_reason is not None}


def test_a_failed_step_ends_its_requests_and_no_other() -> None:
    for late in (False, True):
        for depth in (0, 1):
            engine = make_engine(FlakyRunner({2}, late=late), depth)
            engine.add(request("early", n=2))
            # One more at depth 1: the step after the failed one is under way when the failure is known.
            outputs = [output for _ in range(3 + depth) for output in engine.step().outputs]
            engine.add(request("later"))
            outputs += run(engine)
            assert ends(outputs) == {("early", 0): "error", ("early", 1): "error", ("later", 0): "length"}
            assert any("fell off the bus" in (o.error or "") for o in outputs)
            assert engine.stats().kv_blocks_used == 0


def test_a_deadline_ends_a_request_between_steps() -> None:
    clock = Clock()
    engine = make_engine(NullRunner(LAYOUTS, max_num_seqs=8), clock=clock)
    engine.add(request("slow", timeout_s=5.0))
    engine.step()
    clock.now = 6.0
    assert ends(run(engine)) == {("slow", 0): "timeout"}


@pytest.mark.parametrize("n", [1, 3])
def test_how_long_a_request_waited_is_told_once(n: int) -> None:
    clock = Clock()
    engine = make_engine(NullRunner(LAYOUTS, max_num_seqs=8), clock=clock)
    engine.add(request("late", n=n))
    clock.now = 2.5
    outputs = run(engine)
    assert len(outputs) == 6 * n
    assert [output.queued_s for output in outputs] == [2.5, *[None] * (6 * n - 1)]


def test_steps_in_flight_give_the_same_tokens() -> None:
    answers = []
    for depth in (0, 1):
        engine = make_engine(NullRunner(LAYOUTS, max_num_seqs=8), depth)
        for name in ("a", "b"):
            engine.add(request(name, n=2))
        outputs = run(engine)
        answers.append(sorted((o.request_id, o.index, tuple(o.token_ids)) for o in outputs))
    merged = [
        {key: tuple(t for r, i, ts in answer if (r, i) == key for t in ts) for key in {(r, i) for r, i, _ in answer}}
        for answer in answers
    ]
    assert merged[0] == merged[1]


def test_an_aborted_request_leaves_no_block_behind() -> None:
    engine = make_engine(NullRunner(LAYOUTS, max_num_seqs=8), depth=1)
    engine.add(request("a"))
    engine.step()
    engine.abort("a")
    engine.abort("a")
    engine.abort("unknown")
    assert run(engine) == []
    assert engine.stats().kv_blocks_used == 0
    assert engine.stats().finished_total == {"abort": 1}
