"""``SequenceBlocks``: what the block manager keeps of one sequence."""

from dataclasses import dataclass

from pageport.cache.block_table import BlockTable
from pageport.cache.hash_chain import HashChain


@dataclass(slots=True, kw_only=True)
class SequenceBlocks:
    """Its block tables, one a cache group, and how far they are filled: ``committed <= reserved``."""

    tables: list[BlockTable]
    chain: HashChain
    reserved: int = 0  # tokens written, being written by a step in flight, or about to be by the next
    committed: int = 0  # tokens whose values are final
    is_swapped: bool = False
    # Reserving up to this many tokens takes nothing: the last block of every table is this sequence's own.
    writable_until: int = 0
    # Committing fewer than this many tokens fills no block and releases none.
    uneventful_until: int = 0
    has_updates: bool = False  # the runner has not seen all of the tables
