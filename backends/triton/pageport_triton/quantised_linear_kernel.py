"""Kernels of quantised matrices: integers become the activations' dtype in registers, sums are float32.

The product is computed transposed, outputs by rows: the weight is the left factor, which matrix units take from
registers, where it has just been dequantised.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import rounded_to

# Inputs that a step of a product takes for each scale, as `quantised_matrix.GROUP`.
GROUP = tl.constexpr(32)


@triton.jit
def dequantise(integers, scales_pointer, minima_pointer, group_start, outputs, in_range, BITS: tl.constexpr):
    """Return integers [outputs, 32] with their group's scales and minima, in float32."""
    values = integers.to(tl.float32)
    if scales_pointer is not None:
        if minima_pointer is None and BITS == 4:
            values -= 8.0
        scales = tl.load(scales_pointer + group_start + outputs, mask=in_range, other=0.0).to(tl.float32)
        values *= scales[:, None]
        if minima_pointer is not None:
            minima = tl.load(minima_pointer + group_start + outputs, mask=in_range, other=0.0).to(tl.float32)
            values += minima[:, None]
    return values


@triton.jit
def add_product(
    total, weight, x_pointer, x_stride, rows, num_rows, first_input, in_features, IS_INTERPRETED: tl.constexpr
):
    """Add the product of weights [outputs, 32] and as many inputs of each row to ``total`` [outputs, rows]."""
    inputs = first_input + tl.arange(0, GROUP)
    mask = (inputs < in_features)[:, None] & (rows < num_rows)[None, :]
    x = tl.load(x_pointer + rows.to(tl.int64)[None, :] * x_stride + inputs[:, None], mask=mask, other=0.0)
    factor = rounded_to(weight, x.dtype, IS_INTERPRETED)
    if IS_INTERPRETED:
        factor = factor.to(tl.float32)
        x = x.to(tl.float32)
    return tl.dot(factor, x, total, input_precision="ieee")


@triton.jit(do_not_specialize=["num_rows", "num_steps", "split_steps"])
def quantised_linear_kernel(
    integers_pointer,
    group_scales_pointer,
    output_scales_pointer,
    minima_pointer,
    x_pointer,
    bias_pointer,
    out_pointer,
    num_rows,
    in_features,
    out_features,
    num_steps,
    split_steps,
    x_stride,
    out_stride,
    split_stride,
    BITS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
):
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    in_range = outputs < out_features
    first_step = split * split_steps
    last_step = tl.minimum(first_step + split_steps, num_steps)
    places = outputs[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    step_starts = integers_pointer + first_step.to(tl.int64) * out_features * GROUP
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for step in range(first_step, last_step):
        integers = tl.load(step_starts + places, mask=in_range[:, None], other=0)
        # Bytes hold one group, or two of 4 bits.
        for part in tl.static_range(8 // BITS):
            group = step * (8 // BITS) + part
            numbers = integers
            if BITS == 4:
                numbers = (integers >> (4 * part)) & 15
            weight = dequantise(
                numbers, group_scales_pointer, minima_pointer, group * out_features, outputs, in_range, BITS
            )
            total = add_product(
                total, weight, x_pointer, x_stride, rows, num_rows, group * GROUP, in_features, IS_INTERPRETED
            )
        step_starts += out_features * GROUP
    if output_scales_pointer is not None:
        total *= tl.load(output_scales_pointer + outputs, mask=in_range, other=0.0)[:, None]
    if bias_pointer is not None:
        total += tl.load(bias_pointer + outputs, mask=in_range, other=0.0).to(tl.float32)[:, None]
    starts = out_pointer + split.to(tl.int64) * split_stride + rows.to(tl.int64)[None, :] * out_stride
    mask = in_range[:, None] & (rows < num_rows)[None, :]
    tl.store(starts + outputs[:, None], rounded_to(total, out_pointer.dtype.element_ty, IS_INTERPRETED), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def add_splits_kernel(
    parts_pointer,
    bias_pointer,
    out_pointer,
    num_rows,
    out_features,
    num_splits,
    out_stride,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the shares of a product, in order, and the bias."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (rows < num_rows) & (columns < out_features)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    starts = parts_pointer + rows * out_features + columns
    for _ in range(num_splits):
        total += tl.load(starts, mask=mask, other=0.0)
        starts += num_rows.to(tl.int64) * out_features
    if bias_pointer is not None:
        total += tl.load(bias_pointer + columns, mask=columns < out_features, other=0.0).to(tl.float32)
    tl.store(
        out_pointer + rows * out_stride + columns,
        rounded_to(total, out_pointer.dtype.element_ty, IS_INTERPRETED),
        mask=mask,
    )


@triton.jit(do_not_specialize=["num_rows"])
def quantised_rows_kernel(
    integers_pointer,
    group_scales_pointer,
    output_scales_pointer,
    minima_pointer,
    token_ids_pointer,
    out_pointer,
    num_rows,
    in_features,
    out_features,
    out_stride,
    BITS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the dequantised rows ``token_ids``."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = rows < num_rows
    outputs = tl.load(token_ids_pointer + rows, mask=in_range, other=0).to(tl.int64)[:, None]
    inputs = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = in_range[:, None] & (inputs < in_features)
    groups = inputs // GROUP
    steps = groups if BITS == 8 else groups // 2
    integers = tl.load(
        integers_pointer + (steps.to(tl.int64) * out_features + outputs) * GROUP + inputs % GROUP, mask=mask, other=0
    )
    if BITS == 4:
        integers = tl.where(groups % 2 == 0, integers & 15, integers >> 4)
    values = integers.to(tl.float32)
    if group_scales_pointer is not None:
        if minima_pointer is None and BITS == 4:
            values -= 8.0
        places = groups.to(tl.int64) * out_features + outputs
        values *= tl.load(group_scales_pointer + places, mask=mask, other=0.0).to(tl.float32)
        if minima_pointer is not None:
            values += tl.load(minima_pointer + places, mask=mask, other=0.0).to(tl.float32)
    else:
        values *= tl.load(output_scales_pointer + outputs, mask=in_range[:, None], other=0.0)
    places = out_pointer + rows.to(tl.int64)[:, None] * out_stride + inputs
    tl.store(places, rounded_to(values, out_pointer.dtype.element_ty, IS_INTERPRETED), mask=mask)
