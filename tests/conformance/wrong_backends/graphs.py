"""Graphs that keep something of their capture, and ops that rotate and write in one."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pageport.backend import AttentionParams, Backend, Capabilities, Graph, StepSize
from pageport.backend.batch import AttentionBatch
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend

Run = Callable[[], None]


class Declaring(CpuDevice):
    """The CPU device with these features on top, in float32 alone."""

    features: ClassVar[Mapping[str, int]] = {"graph": 1}

    @property
    def capabilities(self) -> Capabilities:
        plain = super().capabilities
        return dataclasses.replace(
            plain,
            compute_dtypes=("float32",),
            preferred_dtype="float32",
            kv_dtypes=("float32",),
            features={**plain.features, **self.features},
        )


class RunsAgain(Graph):
    """Calls the captured function."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def replay(self) -> None:
        self._run()


class Replays(Declaring):
    def capture(self, run: Run) -> Graph:
        run()
        return RunsAgain(run)


class KeepsTheSizeOfCapture(Replays):
    """Says that its graphs can be resized, and replays what was captured."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, graphs_resize=True)

    def capture(self, run: Run) -> Graph:
        run()
        return IgnoresSizes(run)


class IgnoresSizes(RunsAgain):
    def resize(self, captured: StepSize, size: StepSize) -> None:
        pass


class FreezesInputs(Declaring):
    """Keeps the contents of all that the captured ops touched, and puts them back."""

    def capture(self, run: Run) -> Graph:
        with TouchedTensors() as touched:
            run()
        saved = [(tensor, tensor.clone()) for tensor in touched.tensors]
        return RunsAgain(lambda: [tensor.copy_(content) for tensor, content in saved] and None)


class TouchedTensors(TorchDispatchMode):
    """Collects the tensors that ops get or give."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        self.tensors += [value for value in (*arguments, *(named or {}).values(), result) if isinstance(value, Tensor)]
        return result


class ReplaysNothing(Declaring):
    def capture(self, run: Run) -> Graph:
        run()
        return RunsAgain(lambda: None)


class ReplaysTheNewestGraph(Declaring):
    """Keeps one recording a device, which the next capture replaces."""

    def capture(self, run: Run) -> Graph:
        run()
        self._newest = run
        return RunsAgain(lambda: self._newest())


class KeepsPlanOfCapture(Declaring):
    """Takes lengths and blocks from the plan that was there at the capture."""

    _plans: dict[int, Any] | None = None  # of the graph that runs

    def capture(self, run: Run) -> Graph:
        plans: dict[int, Any] = {}

        def run_with_plans() -> None:
            self._plans = plans
            try:
                run()
            finally:
                self._plans = None

        run_with_plans()
        return RunsAgain(run_with_plans)

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        if self._plans is not None:
            batch = dataclasses.replace(batch, plan=self._plans.setdefault(id(batch), batch.plan))
        super().attention(pool, layer, query, params, batch, out)


class DeclaresGraphItHasNot(Declaring):
    capture = CpuDevice.capture


class HidesItsGraphs(Replays):
    features: ClassVar[Mapping[str, int]] = {}


class RotatesAndWrites(Declaring):
    features: ClassVar[Mapping[str, int]] = {"op:rope_write_kv": 1}

    def rope_write_kv(self, pool, layer, query, key, value, positions, cos_sin, interleaved, slot_mapping, params):
        # Not in place: only the cache needs the rotated keys.
        turned = key.clone()
        self.rope(query, turned, positions, cos_sin, interleaved)
        self.write_kv(pool, layer, turned, value, slot_mapping, params)


class WritesBeforeItRotates(RotatesAndWrites):
    def rope_write_kv(self, pool, layer, query, key, value, positions, cos_sin, interleaved, slot_mapping, params):
        self.write_kv(pool, layer, key, value, slot_mapping, params)
        self.rope(query, key, positions, cos_sin, interleaved)


class RotatesKeysAlone(RotatesAndWrites):
    def rope_write_kv(self, pool, layer, query, key, value, positions, cos_sin, interleaved, slot_mapping, params):
        super().rope_write_kv(
            pool, layer, query.clone(), key, value, positions, cos_sin, interleaved, slot_mapping, params
        )


class RotatesBySlot(RotatesAndWrites):
    def rope_write_kv(self, pool, layer, query, key, value, positions, cos_sin, interleaved, slot_mapping, params):
        turned, unused = key.clone(), torch.zeros_like(query)
        self.rope(unused, turned, slot_mapping.clamp(min=0), cos_sin, interleaved)
        self.rope(query, key.clone(), positions, cos_sin, interleaved)
        self.write_kv(pool, layer, turned, value, slot_mapping, params)


def backend_of(device: type[CpuDevice]) -> type[Backend]:
    class WrongBackend(CpuBackend):
        def open(self, ordinal: int, options: Any, rank: Any = None) -> CpuDevice:
            return device()

    return WrongBackend


CORRECT = [
    ("replays", backend_of(Replays), Level.OPS),
    ("rotates and writes", backend_of(RotatesAndWrites), Level.OPS),
]
WRONG = [
    ("graph without capture", backend_of(DeclaresGraphItHasNot), Level.DISCOVERY, "does not override Device.capture"),
    ("capture without graph", backend_of(HidesItsGraphs), Level.DISCOVERY, "overrides capture but does not declare"),
    ("keeps the size of the capture", backend_of(KeepsTheSizeOfCapture), Level.OPS, "writes to the rows behind"),
    ("freezes inputs", backend_of(FreezesInputs), Level.OPS, "what the buffers held at the capture"),
    ("replays nothing", backend_of(ReplaysNothing), Level.OPS, "nothing is written"),
    ("replays the newest graph", backend_of(ReplaysTheNewestGraph), Level.OPS, "a replay of 1 rows"),
    ("keeps the plan of the capture", backend_of(KeepsPlanOfCapture), Level.ENGINE, "with captured decode steps"),
    ("writes before it rotates", backend_of(WritesBeforeItRotates), Level.OPS, "as it was before the rotation"),
    ("rotates keys alone", backend_of(RotatesKeysAlone), Level.OPS, "the queries are not rotated"),
    ("rotates by slot", backend_of(RotatesBySlot), Level.OPS, "rotated by another position"),
]
