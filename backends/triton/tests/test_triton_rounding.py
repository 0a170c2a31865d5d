"""What the KV cache's numbers become in registers, interpreted."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false

import pytest
import torch
import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import dequantised


@triton.jit
def read_integers(stored_pointer, out_pointer):
    places = tl.arange(0, 256)
    stored = tl.load(stored_pointer + places)
    tl.store(out_pointer + places, dequantised(stored, "int8", False, out_pointer.dtype.element_ty))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
def test_every_stored_integer_is_read_as_itself(dtype: torch.dtype) -> None:
    every_integer = torch.arange(-128, 128, dtype=torch.int8)
    out = torch.full((256,), torch.nan, dtype=dtype)
    read_integers[(1,)](every_integer, out)
    assert torch.equal(out, every_integer.to(dtype))
