"""``cached_prefix`` against its definition, tried length by length."""

from math import lcm

from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.cache.block_group import BlockGroup
from pageport.cache.hash_chain import HashChain
from pageport.cache.layout import GroupLayout
from pageport.cache.prefix_match import cached_prefix

TOKENS = list(range(48))


def group_with(block_size: int, window: int | None, entries: set[int]) -> BlockGroup:
    """A group in which these blocks of ``TOKENS`` are cached."""
    group = BlockGroup(GroupLayout(num_blocks=48, block_size=block_size, sliding_window=window))
    for entry in entries:
        group.index.add(HashChain({}).digest(block_size, TOKENS, entry), entry)
    return group


def longest_by_definition(parts: list[tuple[int, int | None, set[int]]], num_tokens: int) -> int:
    unit = lcm(*(size for size, _, _ in parts))
    for length in range((num_tokens - 1) // unit * unit, 0, -unit):
        seen = [(size, range(max(0, length - (window or 10**6) + 1), length)) for size, window, _ in parts]
        needed = [{position // size for position in positions} for size, positions in seen]
        if all(blocks <= entries for blocks, (_, _, entries) in zip(needed, parts, strict=True)):
            return length
    return 0


part = st.tuples(
    st.sampled_from([2, 4, 6]),
    st.sampled_from([None, 1, 3, 8, 9, 13]),
    st.builds(lambda missing: set(range(24)) - missing, st.sets(st.integers(0, 23), max_size=5)),
)


@given(st.lists(part, min_size=1, max_size=3), st.integers(0, 48))
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
def test_longest_prefix_that_every_group_has_is_found(
    parts: list[tuple[int, int | None, set[int]]], num_tokens: int
) -> None:
    groups = [group_with(size, window, {e for e in entries if e < 48 // size}) for size, window, entries in parts]
    assert cached_prefix(groups, HashChain({}), TOKENS[:num_tokens]) == longest_by_definition(parts, num_tokens)


def test_windows_shorten_each_other() -> None:
    """The second window rules out 24 … 40 and leaves 20, for which the first has a hole."""
    first = group_with(4, 5, {0, 1, 2, 3, 5, 6, 7, 8, 9})
    second = group_with(4, 20, {0, 1, 2, 3, 4, 6, 7, 8, 9})
    assert cached_prefix([first, second], HashChain({}), TOKENS[:41]) == 16


def test_first_miss_of_a_full_group_ends_the_hashing() -> None:
    """A cold prompt costs one hash before it is computed, not one a block."""
    chain = HashChain({})
    assert cached_prefix([group_with(4, None, set()), group_with(4, 8, set())], chain, TOKENS) == 0
    assert [len(digests) for digests in chain._digests.values()] == [1]
