"""The kernel that picks rows of a matrix."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def gather_rows_kernel(
    x_pointer,
    rows_pointer,
    out_pointer,
    num_rows,
    features,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = places < num_rows
    sources = tl.load(rows_pointer + places, mask=in_range, other=0).to(tl.int64)[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = in_range[:, None] & (columns < features)
    values = tl.load(x_pointer + sources * x_stride + columns, mask=mask, other=0.0)
    tl.store(out_pointer + places.to(tl.int64)[:, None] * out_stride + columns, values, mask=mask)
