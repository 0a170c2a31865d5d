"""Rotary embedding in place."""

from collections.abc import Iterator

from torch import Tensor

from pageport_triton.compile_case import CompileCase
from pageport_triton.launch import launch
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration
from pageport_triton.pairwise import Options, pairwise
from pageport_triton.rope_kernel import rope_kernel
from pageport_triton.rows import num_tiles, row_stride, whole_row_tiles
from pageport_triton.signature import named_case


def rope(
    query: Tensor,
    key: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    interleaved: bool,
    *,
    configuration: OpConfiguration,
) -> None:
    """Rotate the first ``cos_sin.shape[1]`` features of every head in place; heads may lie apart."""
    num_tokens, half = len(query), cos_sin.shape[1] // 2
    if not num_tokens or not half:
        return
    assert query.stride(2) == key.stride(2) == 1, f"heads with strides {query.stride()}, {key.stride()}"
    tiles = whole_row_tiles(2 * half, configuration)
    programs = sum(num_tiles(num_tokens * heads.shape[1], tiles.rows) for heads in (query, key))
    launch(
        rope_kernel,
        (programs,),
        query,
        key,
        positions.contiguous(),
        cos_sin,
        num_tokens,
        query.shape[1],
        key.shape[1],
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        row_stride(cos_sin),
        half,
        IS_INTERLEAVED=interleaved,
        IS_INTERPRETED=configuration.is_interpreted,
        ROWS=tiles.rows,
        BLOCK=tiles.block // 2,
        **tiles.options,
    )


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the kernel for every dtype, both ways to pair features, and two sizes."""
    configuration = OP_CONFIGURATIONS[architecture]
    choices: Options = {"dtype": ["bf16", "fp16", "fp32"], "is_interleaved": [False, True], "rotary_size": [128, 32]}
    for choice in pairwise(choices):
        dtype = choice["dtype"]
        tiles = whole_row_tiles(choice["rotary_size"], configuration)
        yield named_case(
            rope_kernel,
            {"query": dtype, "key": dtype, "positions": "i64", "cos_sin": "fp32"},
            {"IS_INTERLEAVED": choice["is_interleaved"], "ROWS": tiles.rows, "BLOCK": tiles.block // 2},
            tiles.options,
            f"{dtype} {choice['rotary_size']}{' interleaved' if choice['is_interleaved'] else ''}",
            aligned=("half",),
        )
