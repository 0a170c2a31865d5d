"""Backends that are wrong before a model is loaded. Imports no torch, since probing them must not either."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pageport.backend import Capabilities, Deviation, Probe, Rank
from pageport.errors import BackendUnavailable
from pageport_cpu.plugin import CpuBackend


class ProbeRaises(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        raise OSError("no such bus")


class ProbeRaisesWithoutEnvironment(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        import os

        return Probe(count=1, details={"home": os.environ["HOME"]})


class ProbeOpensDevice(CpuBackend):
    held: ClassVar[list[Any]] = []

    @classmethod
    def probe(cls) -> Probe:
        # Stands for a device's node: any machine has it.
        cls.held.append(Path("/dev/full").open("wb"))  # noqa: SIM115 - held open is the fault
        return Probe(count=1)


class ProbeImportsTorch(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        import torch

        return Probe(count=1, details={"torch": torch.__version__})


class ProbeIsSlow(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        time.sleep(0.15)
        return Probe(count=1)


class ProbeGivesNoReason(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=0)


class ProbeReturnsNumber(CpuBackend):
    @classmethod
    def probe(cls) -> Probe:
        return 1  # type: ignore[return-value]


class NamedAuto(CpuBackend):
    name = "auto"


class WrittenForTheFuture(CpuBackend):
    interface = (9, 0)


class DeviatesWithoutReason(CpuBackend):
    deviations = (Deviation(check="ops/", kind="never", reason=""),)


class TakesAnyOption(CpuBackend):
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Any:  # noqa: B008 - frozen
        return super().open(ordinal, {}, rank)


class TakesAnyOrdinal(CpuBackend):
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Any:  # noqa: B008 - frozen
        return super().open(0, options, rank)


class NamesNoOrdinal(CpuBackend):
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Any:  # noqa: B008 - frozen
        if ordinal != 0:
            raise BackendUnavailable("No such device.")
        return super().open(ordinal, options, rank)


class Declares(CpuBackend):
    """Declares ``changes`` on top of what the CPU device declares."""

    changes: ClassVar[Mapping[str, Any]] = {}

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Any:  # noqa: B008 - frozen
        device: Any = super().open(ordinal, {**options, "kernels": "none"}, rank)
        device._capabilities = replace(device._capabilities, **self.changes)
        return device


class PrefersWhatItCannotCompute(Declares):
    changes = {"compute_dtypes": ("float32",), "preferred_dtype": "bfloat16"}  # noqa: RUF012


class HasNoBlockSize(Declares):
    changes = {"block_sizes": ()}  # noqa: RUF012


class HasUnknownVariant(Declares):
    changes = {"attention_variants": ("sliding_window", "softcaps")}  # noqa: RUF012


class IsStaticWithoutBuckets(Declares):
    changes = {"static_shapes": True}  # noqa: RUF012


class HasGraphsInNoOrder(Declares):
    changes = {"graph_sizes": (1, 8, 4)}  # noqa: RUF012


class HasContextsInNoOrder(Declares):
    changes = {"context_buckets": (512, 128)}  # noqa: RUF012


class DeclaresOpItHasNot(Declares):
    changes = {"features": {"op:rms_norm": 1}}  # noqa: RUF012


class DeclaresUnservedVersion(Declares):
    changes = {"features": {"op:rms_norm": 7}}  # noqa: RUF012


class ChangesItsAnswers(CpuBackend):
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Any:  # noqa: B008 - frozen
        device: Any = super().open(ordinal, options, rank)
        answers = [replace(device.capabilities, pipeline_depth=depth) for depth in range(99, -1, -1)]

        class Fickle(type(device)):  # type: ignore[misc]
            @property
            def capabilities(self) -> Capabilities:
                return answers.pop()

        device.__class__ = Fickle
        return device


def __getattr__(name: str) -> Any:
    """Make ``WRONG`` when it is asked for: importing the suite imports torch."""
    if name != "WRONG":
        raise AttributeError(name)
    from pageport.testing.conformance import Level

    return [(what, backend, Level.DISCOVERY, words) for what, backend, words in CAUGHT]


CAUGHT = [
    ("probe raises", ProbeRaises, "OSError: no such bus"),
    ("probe raises without environment", ProbeRaisesWithoutEnvironment, "KeyError: 'HOME'"),
    ("probe opens a device", ProbeOpensDevice, "holds /dev/full open"),
    ("probe imports torch", ProbeImportsTorch, "imports torch"),
    ("probe is slow", ProbeIsSlow, "probe() takes 15"),
    ("probe gives no reason", ProbeGivesNoReason, "0 without a reason"),
    ("probe returns a number", ProbeReturnsNumber, "returned 1 and not a Probe"),
    ("named auto", NamedAuto, "'auto'"),
    ("written for another interface", WrittenForTheFuture, "(9, 0)"),
    ("deviates without a reason", DeviatesWithoutReason, "gives no reason"),
    ("takes any option", TakesAnyOption, "took the unknown option"),
    ("takes any ordinal", TakesAnyOrdinal, "opened device 1, though"),
    ("names no ordinal", NamesNoOrdinal, "does not name it: No such device."),
    ("prefers a dtype it cannot", PrefersWhatItCannotCompute, "preferred_dtype 'bfloat16' is not in"),
    ("declares no block size", HasNoBlockSize, "block_sizes is empty"),
    ("declares an unknown variant", HasUnknownVariant, "'softcaps'"),
    ("static without buckets", IsStaticWithoutBuckets, "token_buckets is empty"),
    ("sizes of graphs in no order", HasGraphsInNoOrder, "graph_sizes is (1, 8, 4); name them in ascending order"),
    ("contexts in no order", HasContextsInNoOrder, "context_buckets is (512, 128); name them in ascending order"),
    ("declares an op it has not", DeclaresOpItHasNot, "does not override Device.rms_norm"),
    ("declares an unserved version", DeclaresUnservedVersion, "op:rms_norm version 7"),
    ("changes its answers", ChangesItsAnswers, "changes from one reading to the next"),
]
