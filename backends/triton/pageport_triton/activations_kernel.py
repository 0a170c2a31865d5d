"""The kernel of activations, products and sums, element by element in float32."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import rounded_to


@triton.jit
def tanh(x):
    # Near 0 the quotient cancels; there five terms of the series are exact to float32.
    square = x * x
    series = 62.0 / 2835.0
    series = series * square - 17.0 / 315.0
    series = series * square + 2.0 / 15.0
    series = series * square - 1.0 / 3.0
    series = x + x * square * series
    return tl.where(tl.abs(x) < 0.25, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def operate(x, y, factor, OPERATION: tl.constexpr):
    if OPERATION == "silu":
        return x / (1.0 + tl.exp(-x))
    if OPERATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if OPERATION == "gelu_tanh":
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    if OPERATION == "softcap":
        return factor * tanh(x / factor)
    if OPERATION == "scale":
        return x * factor
    return x + y


@triton.jit(do_not_specialize=["num_rows"])
def elementwise_kernel(
    x_pointer,
    y_pointer,
    out_pointer,
    num_rows,
    features,
    x_stride,
    y_stride,
    out_stride,
    factor,
    OPERATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (rows < num_rows) & (columns < features)
    x = tl.load(x_pointer + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    y = x
    if y_pointer is not None:
        y = tl.load(y_pointer + rows * y_stride + columns, mask=mask, other=0.0).to(tl.float32)
    result = operate(x, y, factor, OPERATION)
    if IS_GATED:
        result *= y
    tl.store(
        out_pointer + rows * out_stride + columns,
        rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED),
        mask=mask,
    )
