"""Rotary embedding of the native device."""

from torch import Tensor

from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, pointer
from pageport_cpu.rows import row_stride


class RopeArguments(Arguments):
    kernel = "rope"
    token_counts = ("tokens",)
    _fields_ = (
        ("query", Pointer),
        ("key", Pointer),
        ("positions", Pointer),
        ("cos_sin", Pointer),
        ("tokens", Integer),
        ("query_heads", Integer),
        ("key_heads", Integer),
        ("query_token_stride", Integer),
        ("query_head_stride", Integer),
        ("key_token_stride", Integer),
        ("key_head_stride", Integer),
        ("cos_sin_stride", Integer),
        ("rotary_size", Integer),
        ("interleaved", Integer),
        ("dtype", Integer),
    )


def rope(library: Library, query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
    """Rotate the first ``cos_sin.shape[1]`` features of every head in place; heads may lie apart."""
    library.run(
        RopeArguments(
            pointer(query),
            pointer(key),
            pointer(positions),
            pointer(cos_sin),
            query.shape[0],
            query.shape[1],
            key.shape[1],
            *_strides(query),
            *_strides(key),
            row_stride(cos_sin),
            cos_sin.shape[1],
            interleaved,
            DTYPE_CODES[query.dtype],
        )
    )


def _strides(heads: Tensor) -> tuple[int, int]:
    assert heads.stride(2) == 1, f"heads with strides {heads.stride()} are not supported"
    return heads.stride(0), heads.stride(1)
