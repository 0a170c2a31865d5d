"""``AttentionCase``: what one attention check computes, as plain numbers; ``typical`` is the one others vary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import KVSpec

# What the values of the stated dtype may be off by, absolutely and relatively; results are about 1, scores up to 10.
TOLERANCES = {
    # Up to 4097 terms in any order, and exponentials of scores that are off by a few of their last bits.
    "float32": 1e-4,
    # The result, the probabilities and a scaled query may each be rounded to 11 bits: 10 / 2^11 moves a score by 0.005.
    "float16": 6e-3,
    # The same with 8 bits: a score moves by up to 0.02, and its probability by 2 %.
    "bfloat16": 3e-2,
}
# The oracle takes part in an 8-bit cache's rounding. With int8 a quotient near the middle of a step may fall to either
# side: a 127th of the largest of a head's numbers, about 3. Queries and weights may be rounded to 8 bits there, too.
KV_TOLERANCES = {**TOLERANCES, "float8_e4m3fn": 0.0, "float8_e5m2": 0.0, "int8": 6e-2}


class Row(NamedTuple):
    """One request of a step: ``length`` tokens with this step's, of which ``queries`` are this step's.

    Padding has length 0 and some queries.
    """

    length: int
    queries: int = 1

    @property
    def is_padding(self) -> bool:
        return self.length == 0


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One step over one pool; decode rows come first, as in core's batches."""

    rows: tuple[Row, ...]
    compute_dtype: str
    kv_dtype: str
    block_size: int
    head_size: int
    num_heads: int = 4
    num_kv_heads: int = 2
    value_head_size: int | None = None  # None: head_size
    kind: str = "full"
    causal: bool = True
    # Unusual on purpose, so that a fixed 1 / sqrt(head_size) shows.
    scale: float = 0.2
    sliding_window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    # Do an 8-bit float's keys and values have a fixed scale?
    has_scales: bool = False
    # Columns of the block table behind those that the longest request needs.
    extra_columns: int = 0
    # Spaces between a token's query and the next one's, as in a fused projection.
    is_strided: bool = True
    # Do rows with one query count as decodes? Else all are prefills.
    has_decodes: bool = True
    max_decode_query_len: int = 1

    @property
    def num_decodes(self) -> int:
        """How many rows lead the batch as decodes."""
        if not self.has_decodes:
            return 0
        is_long = [row.queries > self.max_decode_query_len for row in self.rows]
        return is_long.index(True) if True in is_long else len(self.rows)

    @property
    def kv_spec(self) -> KVSpec:
        return KVSpec(
            num_layers=2,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            value_head_size=self.value_head_size or self.head_size,
            block_size=self.block_size,
            dtype=self.kv_dtype,
            kind="sliding" if self.kind == "sliding" else "full",
        )

    @property
    def tolerance(self) -> float:
        return max(TOLERANCES[self.compute_dtype], KV_TOLERANCES[self.kv_dtype])


def decodes_first(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Order rows as core does."""
    return tuple(sorted(rows, key=lambda row: row.queries > 1))


def typical(capabilities: Capabilities) -> AttentionCase:
    """Return a case of ordinary numbers that the device declares, with no rows yet.

    float32, which shows most, blocks of 16 tokens and heads of 64 features where the device has them.
    """
    compute = _preferred("float32", capabilities.compute_dtypes)
    return AttentionCase(
        rows=(),
        compute_dtype=compute,
        kv_dtype=_preferred(compute, capabilities.kv_dtypes),
        block_size=16 if 16 in capabilities.block_sizes else min(capabilities.block_sizes),
        head_size=64 if 64 in capabilities.head_sizes or not capabilities.head_sizes else min(capabilities.head_sizes),
    )


def _preferred(name: str, names: Sequence[str]) -> str:
    return name if name in names else names[0]
