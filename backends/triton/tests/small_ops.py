"""Tiles of row ops so small that a few rows and features need several of them."""

from dataclasses import replace

from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration, ProductTiles, RowTiles, SampleTiles

TILES = RowTiles(elements=256, elements_per_warp=256, most_warps=1)
INTERPRETER = OP_CONFIGURATIONS["interpreter"]
SMALL: OpConfiguration = replace(
    INTERPRETER,
    row_tiles=TILES,
    norm_tiles=TILES,
    sample=SampleTiles(rows=16, tokens=64, num_warps=1, split_tokens=128, filter_warps=1),
    products={2**31: ProductTiles(outputs=16, rows=16, num_warps=1, num_stages=1)},
    wanted_programs=64,
)
