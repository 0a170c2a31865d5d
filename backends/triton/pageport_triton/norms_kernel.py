"""Kernels of norms: whole rows in registers, sums in float32."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import rounded_to


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_pointer,
    residual_pointer,
    weight_pointer,
    out_pointer,
    num_rows,
    inner_rows,
    features,
    x_outer_stride,
    x_inner_stride,
    out_outer_stride,
    out_inner_stride,
    residual_stride,
    epsilon,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < features)
    outer = rows // inner_rows
    inner = rows % inner_rows
    places = x_pointer + outer * x_outer_stride + inner * x_inner_stride + columns
    x = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    if residual_pointer is not None:
        places = residual_pointer + rows * residual_stride + columns
        total = x + tl.load(places, mask=mask, other=0.0).to(tl.float32)
        # The sum as it is kept, rounded, is what is normed.
        rounded = rounded_to(total, residual_pointer.dtype.element_ty, IS_INTERPRETED)
        tl.store(places, rounded, mask=mask)
        x = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / features + epsilon)
    weight = tl.load(weight_pointer + columns, mask=columns < features, other=0.0).to(tl.float32)
    result = x * scale[:, None] * weight
    places = out_pointer + outer * out_outer_stride + inner * out_inner_stride + columns
    tl.store(places, rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def layer_norm_kernel(
    x_pointer,
    weight_pointer,
    bias_pointer,
    out_pointer,
    num_rows,
    features,
    x_stride,
    out_stride,
    epsilon,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    in_row = columns < features
    mask = (rows < num_rows) & in_row
    x = tl.load(x_pointer + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=1) / features
    centred = tl.where(in_row, x - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / features + epsilon)
    weight = tl.load(weight_pointer + columns, mask=in_row, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * weight
    if bias_pointer is not None:
        result += tl.load(bias_pointer + columns, mask=in_row, other=0.0).to(tl.float32)
    tl.store(
        out_pointer + rows * out_stride + columns,
        rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED),
        mask=mask,
    )
