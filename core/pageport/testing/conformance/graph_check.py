"""Checks of ``capture``: a replay computes from what the buffers hold then, in any order of graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.graph import Graph, StepSize
from pageport.backend.op_table import compile_ops
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.op_formulas import EPSILON, Draw, rms_norm
from pageport.testing.conformance.op_verdict import check_values

IN_FEATURES, OUT_FEATURES = 64, 96
SIZES = (1, 5, 2)
# Rows of the buffers.
ROOM = 8


def graph_checks(context: Context) -> Iterator[Check]:
    """Yield a check for each dtype where graphs are declared."""
    if "graph" in context.capabilities.features:
        for dtype in context.capabilities.compute_dtypes:
            yield Check(Level.OPS, f"ops/graph/{dtype}", partial(check_replays, dtype=dtype))
            if context.capabilities.graphs_resize:
                yield Check(Level.OPS, f"ops/graph, resized/{dtype}", partial(check_resized, dtype=dtype))


def check_replays(context: Context, dtype: str) -> None:
    """Capture a norm and a matrix product, once for each size, and replay them in turn on new contents."""
    captured = [_captured(context, dtype, size) for size in SIZES]
    for _ in range(3):
        for product in captured:
            product.check_replay()


def check_resized(context: Context, dtype: str) -> None:
    """Capture them once, and replay them with fewer rows and with more."""
    product = _captured(context, dtype, size=5)
    for size in (5, 2, 8, 1, 8, 5):
        product.resize(size)
        product.check_replay()


def _captured(context: Context, dtype: str, size: int) -> "CapturedProduct":
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    matrix = draw.normal(OUT_FEATURES, IN_FEATURES) / IN_FEATURES**0.5
    spec = WeightSpec(
        name="conformance",
        out_features=OUT_FEATURES,
        in_features=IN_FEATURES,
        compute_dtype=dtype,
        dequantise=True,
    )
    stored = StoredTensor(scheme="f32", shape=(OUT_FEATURES, IN_FEATURES), read=lambda: {"weight": matrix.float()})
    weight = context.device.prepare_weight(spec, [stored])
    return CapturedProduct(context.device, weight, matrix, draw, size)


class CapturedProduct:
    """``linear(rms_norm(x))`` on buffers of its own, captured with the first ``x``."""

    def __init__(self, device: Device, weight: object, matrix: Tensor, draw: Draw, tokens: int) -> None:
        self._device, self._draw, self._matrix = device, draw, matrix.double()
        where = device.torch_device
        self._captured = self._tokens = tokens
        self._x = draw.normal(ROOM, IN_FEATURES).to(where)
        self._gain = draw.weight(IN_FEATURES).to(where)
        self._normed = torch.full_like(self._x, torch.nan)
        self._out = torch.full((ROOM, OUT_FEATURES), torch.nan, dtype=self._x.dtype, device=where)
        self._at_capture = self._expected()
        ops = compile_ops(device)

        def run() -> None:
            ops.rms_norm(self._x[:tokens], self._gain, EPSILON, self._normed[:tokens])
            ops.linear(weight, self._normed[:tokens], None, self._out[:tokens])

        run()
        self._graph = device.capture(run)

    def resize(self, tokens: int) -> None:
        """Let replays take so many rows."""
        self._tokens = tokens
        self._graph.resize(_decodes(self._captured), _decodes(tokens))

    def check_replay(self) -> None:
        """Replay on new contents, the results of before gone."""
        x = self._draw.normal(*self._x.shape)
        self._x.copy_(x)
        expected = self._expected()[: self._tokens]
        self._normed.fill_(torch.nan)
        self._out.fill_(torch.nan)
        self._graph.replay()
        self._device.synchronize()
        suspects = {
            "the result is that of what the buffers held at the capture": self._at_capture[: self._tokens],
            "nothing is written": torch.full_like(expected, torch.nan),
        }
        what = f"a replay of {self._tokens} rows of linear(rms_norm(x))"
        check_values(what, self._out[: self._tokens], expected, self._out.dtype, is_sum=True, suspects=suspects)
        assert self._out[self._tokens :].isnan().all(), f"{what} writes to the rows behind."
        assert torch.equal(self._x.cpu(), x), f"{what} changes x."

    def _expected(self) -> Tensor:
        return rms_norm(self._x.double().cpu(), self._gain.double().cpu()) @ self._matrix.T


def _decodes(tokens: int) -> StepSize:
    return StepSize(tokens=tokens, requests=tokens, wanted=tokens)


class ReplayCount:
    """How often graphs were replayed."""

    def __init__(self) -> None:
        self.replays = 0


@contextmanager
def counted_replays(device: Device) -> Iterator[ReplayCount]:
    """Count the replays of what is captured meanwhile."""
    count, capture = ReplayCount(), device.capture

    def counting(run: Callable[[], None]) -> Graph:
        return _CountedGraph(capture(run), count)

    setattr(device, "capture", counting)  # noqa: B010 - a method is replaced
    try:
        yield count
    finally:
        delattr(device, "capture")


class _CountedGraph(Graph):
    def __init__(self, graph: Graph, count: ReplayCount) -> None:
        self._graph = graph
        self._count = count

    def replay(self) -> None:
        self._count.replays += 1
        self._graph.replay()

    def resize(self, captured: StepSize, size: StepSize) -> None:
        self._graph.resize(captured, size)
