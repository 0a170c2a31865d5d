"""The suite's own rules: deviations, seeds, messages, and what becomes of a device that cannot even be opened."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from pageport.backend import Backend, Capabilities, Deviation, Probe, Rank
from pageport.errors import BackendUnavailable, UnsupportedFeature
from pageport.testing.conformance import Check, Context, Level, Outcome, Status, run_suite
from pageport.testing.conformance.suite import run_check
from pageport.testing.reference_device import ReferenceDevice


class PlainBackend(Backend):
    name = "plain"

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> ReferenceDevice:  # noqa: B008
        return ReferenceDevice()


def backend_of(device: type[ReferenceDevice]) -> type[Backend]:
    class BackendOfDevice(PlainBackend):
        def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> ReferenceDevice:  # noqa: B008
            return device()

    return BackendOfDevice


class BrokenBackend(PlainBackend):
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> ReferenceDevice:  # noqa: B008
        raise BackendUnavailable("device 0 does not answer")


class DeviatingBackend(PlainBackend):
    deviations: ClassVar[tuple[Deviation, ...]] = (
        Deviation(check="ops/exact", kind="never", reason="it has no such number"),
        Deviation(check="ops/all/", kind="not_implemented", reason="later", exception=UnsupportedFeature),
    )


def fail(error: Exception) -> Callable[[Context], None]:
    def run(_context: Context) -> None:
        raise error

    return run


def outcome(name: str, run: Callable[[Context], None], backend: type[Backend] = PlainBackend, seed: int = 0) -> Outcome:
    return run_check(Context(backend, seed=seed), Check(Level.OPS, name, run))


def test_a_declared_failure_is_a_deviation_with_its_reason() -> None:
    result = outcome("ops/exact", fail(AssertionError("off by 2")), DeviatingBackend)
    assert (result.status, result.message) == (Status.DEVIATES, "never: it has no such number")


def test_an_unexpected_pass_of_a_declared_deviation_fails() -> None:
    result = outcome("ops/exact", lambda context: None, DeviatingBackend)
    assert (result.status, result.message) == (
        Status.FAILED,
        "passes, though declared never: remove the deviation",
    )


def test_another_exception_than_the_declared_one_is_not_excused() -> None:
    result = outcome("ops/all/gelu", fail(AssertionError("off by 2")), DeviatingBackend)
    assert (result.status, result.message) == (Status.FAILED, "off by 2")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("ops/all/gelu", Status.DEVIATES),
        ("ops/all/rope/interleaved", Status.DEVIATES),
        ("ops/all", Status.FAILED),
        ("ops/allowed", Status.FAILED),
    ],
)
def test_a_deviation_ending_in_a_slash_covers_what_is_below_it_and_no_more(name: str, status: Status) -> None:
    assert outcome(name, fail(UnsupportedFeature("no")), DeviatingBackend).status is status


def test_a_deviation_without_slash_covers_its_own_name_only() -> None:
    assert outcome("ops/exact/more", fail(AssertionError("off")), DeviatingBackend).status is Status.FAILED


def test_a_failed_assertion_is_quoted_and_another_error_named() -> None:
    assert outcome("ops/a", fail(AssertionError("shape is (2,)"))).message == "shape is (2,)"
    assert outcome("ops/a", fail(KeyError("scale"))).message == "KeyError: 'scale'"
    assert outcome("ops/a", fail(AssertionError())).message.startswith("AssertionError")


def draw(context: Context) -> None:
    number, torch_number = context.numpy_generator().integers(1 << 30), context.torch_generator().initial_seed()
    raise AssertionError(f"{number} {torch_number}")


def test_a_failure_repeats_with_its_seed_alone_and_after_others() -> None:
    context = Context(PlainBackend, seed=7)
    run_check(context, Check(Level.OPS, "ops/before", draw))
    after_others = run_check(context, Check(Level.OPS, "ops/a", draw))
    assert after_others.message == outcome("ops/a", draw, seed=7).message


def test_other_seeds_and_other_checks_draw_other_numbers() -> None:
    messages = {outcome(name, draw, seed=seed).message for name in ("ops/a", "ops/b") for seed in (0, 1)}
    assert len(messages) == 4


def test_a_figure_belongs_to_its_check_alone() -> None:
    def measure(context: Context) -> None:
        context.measured = "12 GB/s"

    context = Context(PlainBackend)
    first = run_check(context, Check(Level.OPS, "ops/a", measure))
    second = run_check(context, Check(Level.OPS, "ops/b", lambda context: None))
    assert (first.measured, second.measured) == ("12 GB/s", "")


def test_a_level_that_cannot_be_prepared_is_a_failure() -> None:
    for level in (Level.ENGINE, Level.DETERMINISM, Level.FAULTS):
        (only,) = run_suite(Context(BrokenBackend), [level])
        assert only.status is Status.FAILED
        assert only.name.endswith("/prepare")
        assert "device 0 does not answer" in only.message


def test_a_prefix_chooses_checks_and_every_outcome_is_told() -> None:
    told: list[Outcome] = []
    outcomes = run_suite(Context(PlainBackend), [Level.ENGINE], only="engine/refuses", on_outcome=told.append)
    assert outcomes == told
    assert {result.name for result in outcomes} == {
        "engine/refuses float16",
        "engine/refuses KV dtype float16",
        "engine/refuses bfloat16",
        "engine/refuses KV dtype bfloat16",
        "engine/refuses --quantization int8",
        "engine/refuses --quantization int4",
        "engine/refuses block size 1025",
    }
    assert {result.status for result in outcomes} == {Status.PASSED}


def test_a_backend_that_promises_no_determinism_is_asked_for_none() -> None:
    class Undetermined(ReferenceDevice):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, determinism="none")

    assert run_suite(Context(backend_of(Undetermined)), [Level.DETERMINISM]) == []


OTHER_SIZES = {
    "half precision, large blocks and heads, no windows, a step in flight": {
        "compute_dtypes": ("bfloat16",),
        "preferred_dtype": "bfloat16",
        "kv_dtypes": ("bfloat16",),
        "block_sizes": (64,),
        "head_sizes": (64, 128),
        "kv_kinds": ("full",),
        "attention_variants": (),
        "pipeline_depth": 1,
    },
    "blocks of one token, two steps in flight": {"block_sizes": (1,), "pipeline_depth": 2},
}


@pytest.mark.full
@pytest.mark.parametrize("capabilities", list(OTHER_SIZES.values()), ids=list(OTHER_SIZES))
def test_engine_levels_fit_devices_of_other_sizes(capabilities: dict[str, Any]) -> None:
    class OfOtherSizes(ReferenceDevice):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, **capabilities)

    outcomes = run_suite(Context(backend_of(OfOtherSizes)), [Level.ENGINE, Level.DETERMINISM, Level.FAULTS])
    assert [f"{o.name}: {o.message}" for o in outcomes if o.status is not Status.PASSED] == []
