"""Activations, products and sums, element by element."""

from collections.abc import Iterator

from torch import Tensor

from pageport_triton.activations_kernel import elementwise_kernel
from pageport_triton.compile_case import CompileCase
from pageport_triton.launch import launch
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration
from pageport_triton.pairwise import pairwise
from pageport_triton.rows import block_tiles, row_stride, target
from pageport_triton.signature import named_case

_UNGATED = ("gelu", "gelu_tanh", "softcap", "scale", "add")


def silu_mul(gate_up: Tensor, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``silu(gate) * up``, gate being the first half of the columns."""
    return _gate(gate_up, "silu", out, configuration)


def gelu_mul(gate_up: Tensor, tanh: bool, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``gelu(gate) * up``; ``tanh`` picks the tanh approximation (arXiv:1606.08415)."""
    return _gate(gate_up, "gelu_tanh" if tanh else "gelu", out, configuration)


def gelu(x: Tensor, tanh: bool, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``gelu(x)``; ``out`` may be ``x``."""
    return _apply(x, None, "gelu_tanh" if tanh else "gelu", 1.0, out, configuration)


def softcap(x: Tensor, cap: float, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``cap * tanh(x / cap)``; ``out`` may be ``x``."""
    return _apply(x, None, "softcap", cap, out, configuration)


def scale(x: Tensor, factor: float, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``x * factor``; ``out`` may be ``x``."""
    return _apply(x, None, "scale", factor, out, configuration)


def add(x: Tensor, y: Tensor, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``x + y``; ``out`` may be ``x``."""
    return _apply(x, y, "add", 1.0, out, configuration)


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield every operation in every dtype, over long and short rows."""
    configuration = OP_CONFIGURATIONS[architecture]
    forms = [("silu", True), ("gelu", True), ("gelu_tanh", True), *((name, False) for name in _UNGATED)]
    for choice in pairwise({"form": forms, "dtype": ["bf16", "fp16", "fp32"], "features": [4096, 128]}):
        (operation, is_gated), dtype = choice["form"], choice["dtype"]
        tiles = block_tiles(choice["features"], configuration)
        yield named_case(
            elementwise_kernel,
            {"x": dtype, "y": dtype if is_gated or operation == "add" else None, "out": dtype},
            {"OPERATION": operation, "IS_GATED": is_gated, **tiles.constants},
            tiles.options,
            f"{operation}{' gated' if is_gated else ''} {dtype} {choice['features']}",
            floats=("factor",),
            aligned=("features",),
        )


def _gate(gate_up: Tensor, operation: str, out: Tensor | None, configuration: OpConfiguration) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    out = target(out, up)
    _run(gate, up, operation, 1.0, out, configuration, is_gated=True)
    return out


def _apply(
    x: Tensor, y: Tensor | None, operation: str, factor: float, out: Tensor | None, configuration: OpConfiguration
) -> Tensor:
    out = target(out, x)
    _run(x, y, operation, factor, out, configuration)
    return out


def _run(
    x: Tensor,
    y: Tensor | None,
    operation: str,
    factor: float,
    out: Tensor,
    configuration: OpConfiguration,
    is_gated: bool = False,
) -> None:
    if not x.numel():
        return
    num_rows, features = x.shape
    tiles = block_tiles(features, configuration)
    launch(
        elementwise_kernel,
        tiles.grid(num_rows, features),
        x,
        y,
        out,
        num_rows,
        features,
        row_stride(x),
        0 if y is None else row_stride(y),
        row_stride(out),
        factor,
        OPERATION=operation,
        IS_GATED=is_gated,
        IS_INTERPRETED=configuration.is_interpreted,
        **tiles.constants,
        **tiles.options,
    )
