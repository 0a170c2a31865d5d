"""Picking rows of a matrix."""

from collections.abc import Iterator

from torch import Tensor

from pageport_triton.compile_case import CompileCase
from pageport_triton.gather_rows_kernel import gather_rows_kernel
from pageport_triton.launch import launch
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration
from pageport_triton.pairwise import pairwise
from pageport_triton.rows import block_tiles, row_stride
from pageport_triton.signature import named_case


def gather_rows(x: Tensor, rows: Tensor, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return ``x[rows]``."""
    features = x.shape[1]
    out = x.new_empty(len(rows), features) if out is None else out
    if out.numel():
        tiles = block_tiles(features, configuration)
        launch(
            gather_rows_kernel,
            tiles.grid(len(rows), features),
            x,
            rows.contiguous(),
            out,
            len(rows),
            features,
            row_stride(x),
            row_stride(out),
            **tiles.constants,
            **tiles.options,
        )
    return out


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the kernel for every dtype, over long and short rows."""
    configuration = OP_CONFIGURATIONS[architecture]
    for choice in pairwise({"dtype": ["bf16", "fp16", "fp32"], "features": [4096, 128]}):
        tiles = block_tiles(choice["features"], configuration)
        yield named_case(
            gather_rows_kernel,
            {"x": choice["dtype"], "rows": "i64", "out": choice["dtype"]},
            tiles.constants,
            tiles.options,
            f"{choice['dtype']} {choice['features']}",
            aligned=("features",),
        )
