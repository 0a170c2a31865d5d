"""``cached_prefix``: how much of a sequence every cache group still has."""

from collections.abc import Sequence
from math import lcm

from pageport.cache.block_group import BlockGroup
from pageport.cache.hash_chain import HashChain


def cached_prefix(groups: Sequence[BlockGroup], chain: HashChain, token_ids: Sequence[int]) -> int:
    """Return the longest cached prefix in tokens: whole blocks of every group, and less than all of ``token_ids``.

    A full group has to have every block of it; a sliding group those that the position behind it sees.
    """
    unit = lcm(*(group.block_size for group in groups))
    length = max(0, len(token_ids) - 1) // unit * unit
    for group in groups:
        if group.sliding_window is None:
            length = _leading_hits(group, chain, token_ids, length) // unit * unit
    previous = None
    while length != previous:
        previous = length
        for group in groups:
            if group.sliding_window is not None:
                length = _shorten(group, chain, token_ids, length, unit)
    return length


def first_missing_block(group: BlockGroup, chain: HashChain, token_ids: Sequence[int]) -> bytes | None:
    """Return the digest of the first block that ``cached_prefix`` would look for and ``group`` does not have."""
    for entry in range(max(0, len(token_ids) - 1) // group.block_size):
        digest = chain.digest(group.block_size, token_ids, entry)
        if group.index.find(digest) is None:
            return digest
    return None


def _leading_hits(group: BlockGroup, chain: HashChain, token_ids: Sequence[int], num_tokens: int) -> int:
    for entry in range(num_tokens // group.block_size):
        if not _has(group, chain, token_ids, entry):
            return entry * group.block_size
    return num_tokens


def _shorten(group: BlockGroup, chain: HashChain, token_ids: Sequence[int], length: int, unit: int) -> int:
    """Return the longest prefix up to ``length`` whose window the group has."""
    entry = length // group.block_size - 1
    while entry >= group.first_live_block(length):
        if _has(group, chain, token_ids, entry):
            entry -= 1
            continue
        # Whatever reaches beyond the missing block, and is no longer than what needs it, needs it too.
        length = entry * group.block_size // unit * unit
        entry = length // group.block_size - 1
    return length


def _has(group: BlockGroup, chain: HashChain, token_ids: Sequence[int], entry: int) -> bool:
    return group.index.find(chain.digest(group.block_size, token_ids, entry)) is not None
