"""The CUDA backend's device passes the conformance suite without a GPU.

With its kernels in Triton's interpreter, and over a recording fake of torch's module. An engine's steps take seconds
there, so that level 5 is run as a whole with core's reference in place of the kernels, which leaves memory, streams,
padded graphs, swapping and late copies as they are, and in part with the kernels.
"""

from collections.abc import Sequence

import pytest

from pageport.backend import Backend
from pageport.testing.conformance.check import Level, Outcome, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import all_checks, run_check

from .interpreted_backend import InterpretedCuda, RecordedCuda

SEED = 2026
NUM_SHARES = 4
# With the kernels each takes a minute or more.
ENGINE_CHECKS = (
    "engine/llama/alone",
    "engine/llama/graphs replayed",
    "engine/gpt2/together",
    "engine/mistral/past the window, chunks of 16",
    "engine/float32 over int8 cache/llama",
)
QUICK_ENGINE_CHECKS = (
    "engine/llama/graphs replayed",
    "engine/llama/preempted, swapped",
    "engine/llama/pipeline depth 1",
)
QUICK_CHECKS = (
    "memory/bytes per block",
    "memory/bytes per block/export fills them",
    "kv/export and import",
    "kv/copy/chains in order",
    "weights/linear/q4_0 in float32",
    "attention/lengths/decode, block 16",
    "ops/graph/float32",
)


def run_checks(
    backend: type[Backend], levels: Sequence[Level], *, share: int = 0, num_shares: int = 1, only: Sequence[str] = ()
) -> list[Outcome]:
    context = Context(backend, seed=SEED)
    checks = [check for check in all_checks(context, levels) if not only or check.name in only]
    assert not only or len(checks) == len(only), "a check has another name"
    outcomes = [run_check(context, check) for check in checks[share::num_shares]]
    context.close()
    return outcomes


def assert_passed(outcomes: Sequence[Outcome]) -> None:
    assert outcomes
    failed = [f"{o.name}: {o.message}" for o in outcomes if o.status is not Status.PASSED]
    assert not failed, "\n".join(failed)


def test_device_is_discovered_and_describes_itself():
    assert_passed(run_checks(InterpretedCuda, [Level.DISCOVERY]))


def test_kernels_pass_a_check_of_each_kind():
    levels = [Level.MEMORY, Level.KV_AND_WEIGHTS, Level.ATTENTION, Level.OPS]
    assert_passed(run_checks(InterpretedCuda, levels, only=QUICK_CHECKS))


def test_engine_runs_over_streams_and_padded_graphs():
    assert_passed(run_checks(RecordedCuda, [Level.ENGINE], only=QUICK_ENGINE_CHECKS))


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_device_without_its_kernels_passes():
    assert_passed(run_checks(RecordedCuda, [Level.MEMORY, Level.ENGINE, Level.DETERMINISM]))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(NUM_SHARES))
@pytest.mark.parametrize("level", [Level.MEMORY, Level.KV_AND_WEIGHTS, Level.ATTENTION, Level.OPS], ids=str)
def test_kernels_pass(level, share):
    assert_passed(run_checks(InterpretedCuda, [level], share=share, num_shares=NUM_SHARES))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ENGINE_CHECKS)
def test_engine_runs_with_the_kernels(name):
    assert_passed(run_checks(InterpretedCuda, [Level.ENGINE], only=[name]))
