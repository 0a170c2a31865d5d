"""Launch configurations of row ops, sampling and quantised products, by class of architecture: a plain table.

Nothing is tuned while serving. The compile check compiles every entry for its architecture; which of those that do not
spill is quickest has not been measured on a device yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class RowTiles:
    """Programs that work on rows of features, several short rows together."""

    # Elements of a program's tile, and how many of them a warp takes: more warps for longer rows.
    elements: int
    elements_per_warp: int
    most_warps: int

    def rows(self, block: int) -> int:
        """Return how many rows of ``block`` features one program takes."""
        return max(1, self.elements // block)

    def num_warps(self, block: int) -> int:
        """Return how many warps share a tile of rows of ``block`` features; both are powers of two."""
        return max(1, min(self.most_warps, self.rows(block) * block // self.elements_per_warp))


@dataclass(frozen=True, kw_only=True)
class SampleTiles:
    """Programs that go through the vocabulary: so many rows, so many tokens at a time."""

    rows: int
    tokens: int
    num_warps: int
    # A row is divided among several programs, each with at least so many tokens; for filters, one program a row.
    split_tokens: int
    filter_warps: int


@dataclass(frozen=True, kw_only=True)
class ProductTiles:
    """Programs of a quantised product: ``outputs`` by ``rows`` of the result, ``GROUP`` inputs at a time."""

    outputs: int
    rows: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, kw_only=True)
class OpConfiguration:
    """Everything the kernels of ops want to know about one class of architecture."""

    architecture: str
    row_tiles: RowTiles
    # Norms have whole rows in their registers.
    norm_tiles: RowTiles
    sample: SampleTiles
    # By the most rows of activations each is for, ascending; the last serves all above.
    products: Mapping[int, ProductTiles]
    # Inputs are divided among programs, which add up, until there are so many programs.
    wanted_programs: int
    most_splits: int = 16
    # More options of the compiler.
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_interpreted(self) -> bool:
        """Do kernels run in Triton's interpreter, where bfloat16 can be neither added nor multiplied?"""
        return self.architecture == "interpreter"

    def product_tiles(self, rows: int) -> ProductTiles:
        """Return the tiles for a product with so many rows."""
        limit = next((limit for limit in self.products if rows <= limit), max(self.products))
        return self.products[limit]


_ROW_TILES = RowTiles(elements=2048, elements_per_warp=512, most_warps=16)
_WIDE_TILES = RowTiles(elements=2048, elements_per_warp=1024, most_warps=16)
# Architectures whose warps are 64 wide.
_WIDE = ("gfx90a", "gfx942", "gfx950")
# By architecture, where the usual tiles spill.
_NORM_TILES: Mapping[str, RowTiles] = {"sm80": replace(_WIDE_TILES, elements=4096)}
_INTERPRETED_TILES = RowTiles(elements=2**19, elements_per_warp=2**19, most_warps=1)
_SAMPLE = SampleTiles(rows=1, tokens=1024, num_warps=4, split_tokens=8192, filter_warps=8)
# By architecture, where the usual number of warps spills.
_SAMPLES: Mapping[str, SampleTiles] = {"sm80": replace(_SAMPLE, filter_warps=4)}


def _products(num_stages: int, medium_warps: int, large: ProductTiles) -> dict[int, ProductTiles]:
    return {
        16: ProductTiles(outputs=64, rows=16, num_warps=4, num_stages=num_stages),
        32: ProductTiles(outputs=64, rows=32, num_warps=4, num_stages=num_stages),
        64: ProductTiles(outputs=64, rows=64, num_warps=medium_warps, num_stages=num_stages),
        2**31: large,
    }


_LARGE = ProductTiles(outputs=128, rows=128, num_warps=8, num_stages=3)
_LARGE_TWO_STAGES = ProductTiles(outputs=128, rows=128, num_warps=8, num_stages=2)
# Half as many threads as with warps of 64: 128 by 128 would spill.
_LARGE_NARROW = ProductTiles(outputs=64, rows=128, num_warps=8, num_stages=2)
_CDNA_PRODUCTS = _products(2, 4, _LARGE_TWO_STAGES)
_PRODUCTS: Mapping[str, Mapping[int, ProductTiles]] = {
    "sm80": _products(4, 8, _LARGE_TWO_STAGES),
    "sm90": _products(4, 4, _LARGE),
    "sm100": _products(4, 4, _LARGE),
    "gfx90a": _CDNA_PRODUCTS,
    "gfx942": _CDNA_PRODUCTS,
    "gfx950": _CDNA_PRODUCTS,
    "gfx1100": _products(2, 8, _LARGE_NARROW),
    "xpu": _products(2, 4, _LARGE_NARROW),
}
# About four for each multiprocessor, compute unit or core of the largest GPU of a class: what a memory-bound product
# needs in flight.
_WANTED_PROGRAMS = {
    "sm80": 432,
    "sm90": 528,
    "sm100": 592,
    "gfx90a": 416,
    "gfx942": 1216,
    "gfx950": 1024,
    "gfx1100": 384,
    "xpu": 256,
}
# What an operation costs does not depend on its size: few programs, large tiles.
_INTERPRETER = OpConfiguration(
    architecture="interpreter",
    row_tiles=_INTERPRETED_TILES,
    norm_tiles=_INTERPRETED_TILES,
    sample=SampleTiles(rows=64, tokens=2**13, num_warps=1, split_tokens=2**15, filter_warps=1),
    products={2**31: ProductTiles(outputs=256, rows=256, num_warps=1, num_stages=1)},
    wanted_programs=1,
)
OP_CONFIGURATIONS: Mapping[str, OpConfiguration] = {
    "interpreter": _INTERPRETER,
    **{
        architecture: OpConfiguration(
            architecture=architecture,
            row_tiles=_WIDE_TILES if architecture in _WIDE else _ROW_TILES,
            norm_tiles=_NORM_TILES.get(architecture, _WIDE_TILES),
            sample=_SAMPLES.get(architecture, _SAMPLE),
            products=products,
            wanted_programs=_WANTED_PROGRAMS[architecture],
        )
        for architecture, products in _PRODUCTS.items()
    },
}
