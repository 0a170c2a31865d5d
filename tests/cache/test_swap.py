"""Swapping sequences to the host pool and back."""

import pytest

from pageport.cache.block_move import BlockMove
from pageport.cache.layout import GroupLayout

LAYOUT = GroupLayout(num_blocks=8, block_size=4, num_host_blocks=6)


def test_content_survives_the_way_out_and_back(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    assert cache.swap_out(1)
    assert cache.blocks.free_blocks() == (8,)
    cache.open(2, range(100, 130))
    cache.step(2)
    cache.check()
    cache.free(2)
    assert cache.swap_in(1)
    assert cache.decode(1, 11)
    cache.check()


def test_moves_name_device_and_host_blocks(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(6))
    cache.step(1)
    assert cache.blocks.swap_out(1) == [BlockMove(0, [(0, 0), (1, 1)])]
    assert cache.blocks.swap_in(1) == [BlockMove(0, [(0, 1), (1, 2)])]
    assert cache.blocks.take_updates(1) == [(0, 0, [1, 2])]


def test_full_host_pool_changes_nothing(driver) -> None:
    cache = driver(LAYOUT, GroupLayout(num_blocks=8, block_size=4, num_host_blocks=2))
    cache.open(1, range(10))
    cache.step(1)
    assert not cache.swap_out(1)
    cache.check()
    assert cache.decode(1, 11)


def test_short_device_changes_nothing(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    cache.swap_out(1)
    cache.open(2, range(100, 125))
    cache.step(2)
    assert not cache.swap_in(1)
    cache.check()
    cache.free(2)
    assert cache.swap_in(1)
    cache.check()


def test_host_blocks_are_taken_until_the_swapped_in_sequence_commits(driver) -> None:
    """A step copies out before it copies in, so a swap-out beside a swap-in must go elsewhere."""
    cache = driver(LAYOUT)
    for sequence_id in (1, 2):
        cache.open(sequence_id, range(100 * sequence_id, 100 * sequence_id + 10))
        cache.step(sequence_id)
    (out,) = cache.blocks.swap_out(1)
    cache.blocks.swap_in(1)
    (other,) = cache.blocks.swap_out(2)
    assert not {host for _, host in out.pairs} & {host for _, host in other.pairs}
    cache.blocks.reserve(1, 11)
    cache.blocks.commit(1, range(100, 111), 11)
    cache.blocks.free(2)
    assert cache.blocks.usage().used == (3,)
    cache.blocks.check()


def test_host_blocks_are_free_after_that_commit(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    for token_id in range(5):
        assert cache.swap_out(1)
        assert cache.swap_in(1)
        assert cache.decode(1, token_id)
    cache.open(2, range(100, 116))
    cache.step(2)
    cache.open(3, range(200, 203))
    assert cache.swap_out(1)
    assert not cache.swap_out(2)
    cache.check()


def test_shared_blocks_are_copied_out_too(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    cache.fork(1, 2)
    assert cache.swap_out(1)
    cache.check()
    cache.decode(2, 50)
    assert cache.swap_in(1)
    cache.decode(1, 60)
    cache.check()
    assert cache.num_copies == 0


def test_step_in_flight_is_committed_after_the_swap_out(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(12))
    cache.run(1, 12)
    cache.swap_out(1)
    cache.commit(1)
    cache.check()
    cache.swap_in(1)
    cache.decode(1, 12)
    cache.check()


def test_swapped_in_blocks_are_found_again(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(11))
    cache.step(1)
    cache.swap_out(1)
    cache.open(2, range(100, 130))
    cache.step(2)
    cache.free(2)
    cache.swap_in(1)
    cache.decode(1, 11)
    assert cache.open(3, range(11)) == 8
    cache.check()


def test_sliding_window_takes_only_its_live_blocks_along(driver) -> None:
    cache = driver(GroupLayout(num_blocks=8, block_size=4, sliding_window=4, num_host_blocks=2))
    cache.open(1, range(20))
    cache.step(1)
    assert cache.swap_out(1)
    assert cache.blocks.block_table(1, 0) == [-1, -1, -1, -1, 0]
    cache.swap_in(1)
    cache.decode(1, 20)
    cache.check()


def test_swapped_sequence_can_be_forked_truncated_and_freed(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    cache.swap_out(1)
    cache.fork(1, 2)
    cache.truncate(2, 6)
    cache.check()
    cache.free(1)
    cache.check()
    cache.swap_in(2)
    cache.decode(2, 70)
    cache.check()


def test_where_a_sequence_is_decides_what_can_be_asked(driver) -> None:
    cache = driver(LAYOUT)
    cache.open(1, range(10))
    cache.step(1)
    with pytest.raises(ValueError, match="in device blocks already"):
        cache.swap_in(1)
    cache.swap_out(1)
    with pytest.raises(ValueError, match="in host blocks already"):
        cache.swap_out(1)
    with pytest.raises(ValueError, match="swap it in before it grows"):
        cache.blocks.reserve(1, 11)
