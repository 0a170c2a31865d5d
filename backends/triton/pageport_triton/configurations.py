"""Launch configurations of attention and of the KV cache, by class of architecture: a plain table.

Nothing is tuned while serving. Every entry is compiled for its architecture by the compile check, which records
registers, shared memory and spills.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from pageport.errors import UnsupportedFeature

Factors = Literal["narrow", "dequantised", "wide"]


class HeadClass(NamedTuple):
    """What decides about tiles: features of a head, up to a power of two, and what is multiplied.

    ``wide``: float32 queries; ``dequantised``: narrower ones with an 8-bit cache, whose keys pass through registers;
    ``narrow``: narrower ones with any other cache.
    """

    head_tile: int
    factors: Factors


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """One program of decode attention: the query heads of a KV head against so many keys at a time."""

    keys: int
    num_warps: int
    num_stages: int
    # Features of a head multiplied at a time; None: all, and the query stays in registers.
    head_chunk: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """One program of prefill attention: so many rows (queries times heads) against so many keys at a time."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int
    # Features of a head multiplied at a time; None: all, and the query stays in registers.
    head_chunk: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConfiguration:
    """How decode attention divides a request's keys among programs."""

    # Programs that keep the device busy: a few for each of its cores.
    wanted_programs: int
    # A split has at least so many tiles, so that merging costs less than it gains.
    least_tiles: int = 4


@dataclass(frozen=True, slots=True)
class WriteConfiguration:
    """One program that writes to the cache: so many rows (tokens times heads)."""

    rows: int
    num_warps: int

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps}


@dataclass(frozen=True, slots=True)
class CopyConfiguration:
    """One program that copies blocks: so many words of 4 bytes."""

    words: int
    num_warps: int

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.num_warps}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What the kernels of attention and of the KV cache want to know about one class of architecture."""

    decode: Mapping[HeadClass, DecodeTile]
    prefill: Mapping[HeadClass, PrefillTile]
    split: SplitConfiguration
    write: WriteConfiguration
    copy: CopyConfiguration
    # How float32 matrices are multiplied: exactly, or as three products in a shorter format that are as good together.
    float32_product: str = "ieee"
    # Are there matrix instructions for float32 at all? Otherwise its products are sums of products.
    has_float32_product: bool = True
    # Does it convert e4m3 in one instruction? Otherwise kernels shift bits.
    has_float8: bool = False


def configuration_of(architecture: str) -> Configuration:
    """Return the table's entry for ``sm90``, ``gfx942``, …, ``xpu`` or ``interpreter``.

    Raises:
        UnsupportedFeature: there is none.
    """
    if architecture not in CONFIGURATIONS:
        raise UnsupportedFeature(
            f"There are no Triton launch configurations for {architecture}; there are for {', '.join(CONFIGURATIONS)}."
        )
    return CONFIGURATIONS[architecture]


HEAD_TILES = (32, 64, 128, 256)
FACTORS: tuple[Factors, ...] = ("narrow", "dequantised", "wide")
HEAD_CLASSES = tuple(HeadClass(tile, factors) for factors in FACTORS for tile in HEAD_TILES)

SM80 = Configuration(
    decode={
        HeadClass(32, "narrow"): DecodeTile(64, 4, 3),
        HeadClass(64, "narrow"): DecodeTile(64, 4, 3),
        HeadClass(128, "narrow"): DecodeTile(64, 4, 3),
        HeadClass(256, "narrow"): DecodeTile(32, 4, 3),
        HeadClass(32, "dequantised"): DecodeTile(64, 4, 3),
        HeadClass(64, "dequantised"): DecodeTile(64, 4, 3),
        HeadClass(128, "dequantised"): DecodeTile(32, 4, 3),
        HeadClass(256, "dequantised"): DecodeTile(16, 4, 2),
        HeadClass(32, "wide"): DecodeTile(32, 4, 3),
        HeadClass(64, "wide"): DecodeTile(32, 4, 3),
        HeadClass(128, "wide"): DecodeTile(16, 4, 2),
        HeadClass(256, "wide"): DecodeTile(16, 8, 2),
    },
    prefill={
        HeadClass(32, "narrow"): PrefillTile(128, 64, 4, 3),
        HeadClass(64, "narrow"): PrefillTile(128, 64, 8, 3),
        HeadClass(128, "narrow"): PrefillTile(64, 64, 8, 3),
        HeadClass(256, "narrow"): PrefillTile(64, 16, 8, 3),
        HeadClass(32, "dequantised"): PrefillTile(64, 64, 4, 3),
        HeadClass(64, "dequantised"): PrefillTile(128, 32, 8, 3),
        HeadClass(128, "dequantised"): PrefillTile(64, 64, 8, 3),
        HeadClass(256, "dequantised"): PrefillTile(64, 16, 8, 2, 128),
        HeadClass(32, "wide"): PrefillTile(64, 32, 4, 2),
        HeadClass(64, "wide"): PrefillTile(32, 32, 8, 2),
        HeadClass(128, "wide"): PrefillTile(32, 32, 8, 2, 32),
        HeadClass(256, "wide"): PrefillTile(16, 16, 8, 2),
    },
    split=SplitConfiguration(wanted_programs=4 * 108),
    write=WriteConfiguration(8, 4),
    copy=CopyConfiguration(1024, 4),
    float32_product="tf32x3",
)

# Five stages keep two tiles on their way to shared memory while one is computed.
SM90 = Configuration(
    decode={
        HeadClass(32, "narrow"): DecodeTile(64, 4, 5),
        HeadClass(64, "narrow"): DecodeTile(64, 4, 5),
        HeadClass(128, "narrow"): DecodeTile(64, 4, 5),
        HeadClass(256, "narrow"): DecodeTile(32, 4, 5),
        HeadClass(32, "dequantised"): DecodeTile(64, 4, 5),
        HeadClass(64, "dequantised"): DecodeTile(64, 4, 5),
        HeadClass(128, "dequantised"): DecodeTile(32, 4, 5),
        HeadClass(256, "dequantised"): DecodeTile(32, 4, 5),
        HeadClass(32, "wide"): DecodeTile(32, 4, 5),
        HeadClass(64, "wide"): DecodeTile(32, 4, 3),
        HeadClass(128, "wide"): DecodeTile(32, 8, 3),
        HeadClass(256, "wide"): DecodeTile(16, 8, 2),
    },
    prefill={
        HeadClass(32, "narrow"): PrefillTile(128, 64, 4, 3),
        HeadClass(64, "narrow"): PrefillTile(128, 128, 8, 3),
        HeadClass(128, "narrow"): PrefillTile(128, 64, 8, 3),
        HeadClass(256, "narrow"): PrefillTile(128, 32, 8, 2),
        HeadClass(32, "dequantised"): PrefillTile(128, 64, 4, 3),
        HeadClass(64, "dequantised"): PrefillTile(128, 64, 8, 3),
        HeadClass(128, "dequantised"): PrefillTile(128, 64, 8, 3),
        HeadClass(256, "dequantised"): PrefillTile(128, 16, 8, 3),
        HeadClass(32, "wide"): PrefillTile(64, 64, 4, 2),
        HeadClass(64, "wide"): PrefillTile(64, 32, 4, 2),
        HeadClass(128, "wide"): PrefillTile(32, 32, 8, 2, 32),
        HeadClass(256, "wide"): PrefillTile(16, 16, 8, 2),
    },
    split=SplitConfiguration(wanted_programs=4 * 132),
    write=WriteConfiguration(8, 4),
    copy=CopyConfiguration(1024, 4),
    float32_product="tf32x3",
    has_float8=True,
)

SM100 = replace(
    SM90,
    decode={**SM90.decode, HeadClass(64, "dequantised"): DecodeTile(64, 8, 5)},
    prefill={
        **SM90.prefill,
        HeadClass(32, "dequantised"): PrefillTile(64, 32, 8, 3),
        HeadClass(64, "dequantised"): PrefillTile(64, 64, 4, 3),
        HeadClass(128, "dequantised"): PrefillTile(128, 32, 8, 3),
        HeadClass(32, "wide"): PrefillTile(64, 32, 4, 2),
        HeadClass(64, "wide"): PrefillTile(64, 32, 8, 2),
    },
    split=SplitConfiguration(wanted_programs=4 * 148),
)

# Loads pass through registers here: more waves hide more of memory's latency than deeper pipelines do.
GFX942 = Configuration(
    decode={
        HeadClass(32, "narrow"): DecodeTile(64, 4, 2),
        HeadClass(64, "narrow"): DecodeTile(64, 4, 2),
        HeadClass(128, "narrow"): DecodeTile(32, 4, 2),
        HeadClass(256, "narrow"): DecodeTile(16, 4, 2),
        HeadClass(32, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(64, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(128, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(256, "dequantised"): DecodeTile(16, 4, 2),
        HeadClass(32, "wide"): DecodeTile(32, 4, 2),
        HeadClass(64, "wide"): DecodeTile(32, 4, 2),
        HeadClass(128, "wide"): DecodeTile(16, 4, 2),
        HeadClass(256, "wide"): DecodeTile(16, 8, 2),
    },
    prefill={
        HeadClass(32, "narrow"): PrefillTile(128, 64, 4, 2),
        HeadClass(64, "narrow"): PrefillTile(128, 32, 4, 2),
        HeadClass(128, "narrow"): PrefillTile(128, 32, 4, 1),
        HeadClass(256, "narrow"): PrefillTile(64, 32, 4, 1),
        HeadClass(32, "dequantised"): PrefillTile(128, 32, 4, 2),
        HeadClass(64, "dequantised"): PrefillTile(128, 32, 4, 2),
        HeadClass(128, "dequantised"): PrefillTile(128, 32, 4, 1),
        HeadClass(256, "dequantised"): PrefillTile(64, 16, 4, 1),
        HeadClass(32, "wide"): PrefillTile(64, 32, 4, 1),
        HeadClass(64, "wide"): PrefillTile(64, 32, 4, 1),
        HeadClass(128, "wide"): PrefillTile(32, 32, 4, 1),
        HeadClass(256, "wide"): PrefillTile(16, 16, 4, 1),
    },
    split=SplitConfiguration(wanted_programs=4 * 304),
    write=WriteConfiguration(8, 4),
    copy=CopyConfiguration(1024, 4),
)

GFX90A = replace(GFX942, split=SplitConfiguration(wanted_programs=4 * 104))
GFX950 = replace(
    GFX942,
    decode={**GFX942.decode, HeadClass(256, "wide"): DecodeTile(16, 8, 1)},
    split=SplitConfiguration(wanted_programs=4 * 256),
    has_float8=True,
)

GFX1100 = Configuration(
    decode={
        HeadClass(32, "narrow"): DecodeTile(64, 4, 2),
        HeadClass(64, "narrow"): DecodeTile(32, 4, 2),
        HeadClass(128, "narrow"): DecodeTile(16, 4, 2),
        HeadClass(256, "narrow"): DecodeTile(16, 4, 1, 16),
        HeadClass(32, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(64, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(128, "dequantised"): DecodeTile(32, 4, 1, 64),
        HeadClass(256, "dequantised"): DecodeTile(16, 4, 1, 32),
        HeadClass(32, "wide"): DecodeTile(16, 4, 1),
        HeadClass(64, "wide"): DecodeTile(16, 4, 1),
        HeadClass(128, "wide"): DecodeTile(16, 8, 1, 32),
        HeadClass(256, "wide"): DecodeTile(16, 4, 1, 16),
    },
    prefill={
        HeadClass(32, "narrow"): PrefillTile(64, 32, 4, 1),
        HeadClass(64, "narrow"): PrefillTile(64, 32, 4, 1),
        HeadClass(128, "narrow"): PrefillTile(64, 16, 4, 1, 64),
        HeadClass(256, "narrow"): PrefillTile(32, 16, 8, 1, 16),
        HeadClass(32, "dequantised"): PrefillTile(64, 16, 4, 1),
        HeadClass(64, "dequantised"): PrefillTile(64, 16, 4, 1),
        HeadClass(128, "dequantised"): PrefillTile(32, 16, 4, 1, 64),
        HeadClass(256, "dequantised"): PrefillTile(32, 16, 8, 1, 32),
        HeadClass(32, "wide"): PrefillTile(16, 16, 4, 1),
        HeadClass(64, "wide"): PrefillTile(16, 16, 4, 1, 32),
        HeadClass(128, "wide"): PrefillTile(16, 16, 8, 1, 32),
        HeadClass(256, "wide"): PrefillTile(16, 16, 4, 1, 16),
    },
    split=SplitConfiguration(wanted_programs=4 * 96),
    write=WriteConfiguration(8, 4),
    copy=CopyConfiguration(1024, 4),
    has_float32_product=False,
)

# Compiled by `spirv_check` alone, which counts no registers.
XPU = Configuration(
    decode={
        HeadClass(32, "narrow"): DecodeTile(64, 4, 2),
        HeadClass(64, "narrow"): DecodeTile(64, 4, 2),
        HeadClass(128, "narrow"): DecodeTile(32, 4, 2),
        HeadClass(256, "narrow"): DecodeTile(16, 4, 2),
        HeadClass(32, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(64, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(128, "dequantised"): DecodeTile(32, 4, 2),
        HeadClass(256, "dequantised"): DecodeTile(16, 4, 2),
        HeadClass(32, "wide"): DecodeTile(32, 4, 2),
        HeadClass(64, "wide"): DecodeTile(32, 4, 2),
        HeadClass(128, "wide"): DecodeTile(16, 4, 2),
        HeadClass(256, "wide"): DecodeTile(16, 8, 2),
    },
    prefill={
        HeadClass(32, "narrow"): PrefillTile(64, 32, 8, 2),
        HeadClass(64, "narrow"): PrefillTile(64, 32, 8, 2),
        HeadClass(128, "narrow"): PrefillTile(64, 32, 8, 2),
        HeadClass(256, "narrow"): PrefillTile(32, 32, 8, 2),
        HeadClass(32, "dequantised"): PrefillTile(64, 32, 8, 2),
        HeadClass(64, "dequantised"): PrefillTile(64, 32, 8, 2),
        HeadClass(128, "dequantised"): PrefillTile(64, 32, 8, 2),
        HeadClass(256, "dequantised"): PrefillTile(32, 32, 8, 2),
        HeadClass(32, "wide"): PrefillTile(32, 32, 4, 2),
        HeadClass(64, "wide"): PrefillTile(32, 32, 4, 2),
        HeadClass(128, "wide"): PrefillTile(32, 16, 8, 2),
        HeadClass(256, "wide"): PrefillTile(16, 16, 8, 2),
    },
    split=SplitConfiguration(wanted_programs=4 * 64),
    write=WriteConfiguration(8, 4),
    copy=CopyConfiguration(1024, 4),
)

INTERPRETER = Configuration(
    # Its time goes by operations, not by numbers: tiles are large and programs few.
    decode=dict.fromkeys(HEAD_CLASSES, DecodeTile(128, 1, 1)),
    prefill=dict.fromkeys(HEAD_CLASSES, PrefillTile(64, 128, 1, 1)),
    split=SplitConfiguration(wanted_programs=16),
    write=WriteConfiguration(512, 1),
    copy=CopyConfiguration(2**16, 1),
)

CONFIGURATIONS: Mapping[str, Configuration] = {
    "sm80": SM80,
    "sm90": SM90,
    "sm100": SM100,
    "gfx90a": GFX90A,
    "gfx942": GFX942,
    "gfx950": GFX950,
    "gfx1100": GFX1100,
    "xpu": XPU,
    "interpreter": INTERPRETER,
}
