"""``BlockPool``: states of a block and the order in which blocks are given away."""

import pytest

from pageport.cache.block_pool import BlockPool, BlockState
from pageport.cache.prefix_index import PrefixIndex


def cached_pool(num_blocks: int) -> tuple[BlockPool, PrefixIndex]:
    """A pool whose blocks are all in use and indexed."""
    index = PrefixIndex()
    pool = BlockPool(num_blocks, index)
    for block_id in [pool.allocate() for _ in range(num_blocks)]:
        index.add(bytes([block_id]), block_id)
    return pool, index


def test_fresh_blocks_are_given_in_order() -> None:
    pool = BlockPool(3)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    assert pool.num_available == 0


def test_free_blocks_are_given_before_cached_ones() -> None:
    pool, index = cached_pool(3)
    index.remove(1)
    pool.release([0, 1])
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 1, 1)
    assert pool.allocate() == 1
    assert index.find(bytes([0])) == 0


def test_least_recently_used_cached_block_is_evicted_first_and_leaves_the_index() -> None:
    pool, index = cached_pool(3)
    pool.release([2, 0, 1])
    pool.share(2)
    pool.release([2])
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    assert len(index) == 0


def test_shared_block_is_released_with_its_last_holder() -> None:
    pool = BlockPool(1)
    pool.share(pool.allocate())
    pool.release([0])
    assert pool.num_available == 0
    pool.release([0])
    assert pool.num_available == 1


def test_states_say_who_needs_each_block() -> None:
    pool, index = cached_pool(4)
    pool.share(1)
    index.remove(2)
    pool.release([0, 2])
    assert list(pool.states()) == [BlockState.CACHED, BlockState.SHARED, BlockState.FREE, BlockState.USED]


def test_block_cannot_be_released_more_often_than_it_is_held() -> None:
    """Case ABT-02."""
    pool = BlockPool(2)
    pool.release([pool.allocate()])
    with pytest.raises(AssertionError, match="block 0 is released more often than it is held"):
        pool.release([0])


def test_stored_tokens_follow_the_used_blocks_only() -> None:
    pool, _ = cached_pool(2)
    pool.fill(0, 16)
    pool.fill(1, 5)
    pool.fill(1, 3)
    assert pool.tokens_stored == 21
    pool.release([0])
    assert pool.tokens_stored == 5
    pool.share(0)
    pool.cut(1, 2)
    assert pool.tokens_stored == 18


def test_check_finds_a_table_that_holds_a_block_it_does_not_own() -> None:
    pool = BlockPool(2)
    pool.allocate()
    pool.check([[0]])
    with pytest.raises(AssertionError, match="references are wrong"):
        pool.check([[0], [0]])
    with pytest.raises(AssertionError, match="references are wrong"):
        pool.check([[]])
