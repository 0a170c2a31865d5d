"""RMS norm, with and without a residual, and layer norm."""

from collections.abc import Iterator

from torch import Tensor

from pageport.backend.reference import ops as reference_ops
from pageport_triton.compile_case import CompileCase
from pageport_triton.launch import launch
from pageport_triton.norms_kernel import layer_norm_kernel, rms_norm_kernel
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration
from pageport_triton.pairwise import Options, pairwise
from pageport_triton.rows import num_tiles, row_stride, target, whole_row_tiles
from pageport_triton.signature import named_case

# Longer rows do not fit the registers of one program.
LONGEST_ROW = 2**14


def rms_norm(
    x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None, *, configuration: OpConfiguration
) -> Tensor:
    """Return ``x / sqrt(mean(x²) + epsilon) * weight``; with three axes the last is normed: the heads of a view."""
    if x.shape[-1] > LONGEST_ROW or x.dim() not in (2, 3):
        return reference_ops.rms_norm(x, weight, epsilon, out)
    return _norm(x, None, weight, epsilon, target(out, x), configuration)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
    out: Tensor | None = None,
    *,
    configuration: OpConfiguration,
) -> Tensor:
    """Add ``x`` to ``residual`` in place and return the RMS norm of the sum."""
    if x.shape[-1] > LONGEST_ROW:
        return reference_ops.add_rms_norm(x, residual, weight, epsilon, out)
    return _norm(x, residual, weight, epsilon, target(out, x), configuration)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    out: Tensor | None = None,
    *,
    configuration: OpConfiguration,
) -> Tensor:
    """Return the layer norm of each row; ``out`` may be ``x``."""
    num_rows, features = x.shape
    if features > LONGEST_ROW:
        return reference_ops.layer_norm(x, weight, bias, epsilon, out)
    out = target(out, x)
    if x.numel():
        tiles = whole_row_tiles(features, configuration)
        launch(
            layer_norm_kernel,
            (num_tiles(num_rows, tiles.rows),),
            x,
            weight,
            bias,
            out,
            num_rows,
            features,
            row_stride(x),
            row_stride(out),
            epsilon,
            IS_INTERPRETED=configuration.is_interpreted,
            **tiles.constants,
            **tiles.options,
        )
    return out


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield both kernels for the dtypes, with and without the optional tensor, and for short and long rows."""
    configuration = OP_CONFIGURATIONS[architecture]
    choices: Options = {
        "dtype": ["bf16", "fp16", "fp32"],
        "is_full": [True, False],
        "features": [4096, 128, 576, LONGEST_ROW],
    }
    for choice in pairwise(choices):
        tiles = whole_row_tiles(choice["features"], configuration)
        dtype = choice["dtype"]
        optional = dtype if choice["is_full"] else None
        for kernel, what in ((rms_norm_kernel, "residual"), (layer_norm_kernel, "bias")):
            yield named_case(
                kernel,
                {"x": dtype, "weight": dtype, "out": dtype, what: optional},
                tiles.constants,
                tiles.options,
                f"{dtype} {choice['features']}{f' with {what}' if optional else ''}",
                floats=("epsilon",),
                aligned=("features",),
            )


def _norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float, out: Tensor, configuration: OpConfiguration
) -> Tensor:
    if not x.numel():
        return out
    features = x.shape[-1]
    inner_rows = x.shape[1] if x.dim() == 3 else 1
    num_rows = x.shape[0] * inner_rows
    tiles = whole_row_tiles(features, configuration)
    launch(
        rms_norm_kernel,
        (num_tiles(num_rows, tiles.rows),),
        x,
        residual,
        weight,
        out,
        num_rows,
        inner_rows,
        features,
        *_strides(x),
        *_strides(out),
        0 if residual is None else row_stride(residual),
        epsilon,
        IS_INTERPRETED=configuration.is_interpreted,
        **tiles.constants,
        **tiles.options,
    )
    return out


def _strides(x: Tensor) -> tuple[int, int]:
    """Return elements from row to row: outer, inner."""
    return row_stride(x), x.stride(1) if x.dim() == 3 else 0
