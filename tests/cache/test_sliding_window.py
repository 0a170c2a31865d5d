"""Sliding-window groups: when blocks are released, and what a prefix hit needs."""

import pytest

from pageport.cache.layout import GroupLayout

# Position p sees p - 7 … p.
WINDOW = GroupLayout(num_blocks=20, block_size=4, sliding_window=8)
FULL = GroupLayout(num_blocks=20, block_size=4)


@pytest.mark.parametrize(("computed", "released"), [(8, 0), (10, 0), (11, 1), (14, 1), (15, 2), (19, 3)])
def test_block_is_released_once_the_next_position_sees_none_of_it(driver, computed: int, released: int) -> None:
    cache = driver(WINDOW)
    cache.open(1, range(40))
    cache.step(1, computed)
    assert cache.blocks.block_table(1, 0)[: released + 1].count(-1) == released
    assert cache.blocks.block_table(1, 0).count(-1) == released
    cache.check()


def test_decoding_releases_each_block_at_its_first_unseen_position(driver) -> None:
    cache = driver(WINDOW)
    cache.open(1, [0])
    cache.step(1)
    for computed in range(2, 60):
        cache.decode(1, computed)
        assert cache.blocks.block_table(1, 0).count(-1) == max(0, computed - 7) // 4


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 7, 16, 70])
@pytest.mark.parametrize("caching", [True, False])
def test_every_chunk_size_keeps_what_the_window_sees(driver, chunk: int, caching: bool) -> None:
    """Case KVC-08: the prompt in chunks, then decoding far past the window, then a second prompt that shares."""
    cache = driver(FULL_LONG, WINDOW, enable_prefix_caching=caching, max_tokens_per_step=70)
    cache.open(1, range(70))
    for stop in range(chunk, 70 + chunk, chunk):
        assert cache.step(1, min(stop, 70))
        cache.check()
    for token in range(60):
        assert cache.decode(1, token)
        cache.check()
    cache.open(2, [*range(40), *range(500, 510)])
    assert cache.step(2)
    cache.check()


FULL_LONG = GroupLayout(num_blocks=60, block_size=4)


@pytest.mark.parametrize("step", [1, 5, 8])
def test_sequence_never_holds_more_than_promised(driver, step: int) -> None:
    layout = GroupLayout(num_blocks=6, block_size=4, sliding_window=8)
    cache = driver(layout, max_tokens_per_step=step)
    assert cache.blocks.blocks_for(0, 1000) <= 6
    cache.open(1, range(200))
    for stop in range(step, 200, step):
        assert cache.step(1, stop)
        assert cache.blocks.usage().used[0] <= cache.blocks.blocks_for(0, stop)


def test_sequence_with_a_step_in_flight_fits_where_one_without_does(driver) -> None:
    """What a window has passed is released at the latest when room is short, not only at the late commit."""
    cache = driver(GroupLayout(num_blocks=5, block_size=4, sliding_window=8), max_tokens_per_step=8)
    assert cache.blocks.max_sequence_tokens > 1000
    cache.open(1, range(200))
    cache.run(1, 8)
    for stop in range(16, 200, 8):
        assert cache.run(1, stop)
        cache.commit(1, stop - 8)
        cache.check()


def test_block_released_before_its_commit_is_neither_counted_nor_indexed(driver) -> None:
    cache = driver(GroupLayout(num_blocks=7, block_size=4, sliding_window=8), max_tokens_per_step=16)
    cache.open(1, range(48))
    assert cache.run(1, 16)
    assert cache.run(1, 32)
    assert cache.blocks.block_table(1, 0)[:3] == [-1, -1, 2]
    cache.commit(1, 16)
    cache.check()
    assert cache.blocks.usage().tokens_stored == (8,)
    assert cache.open(2, range(9)) == 0


def test_released_entries_reach_the_runner(driver) -> None:
    cache = driver(WINDOW)
    cache.blocks.open(1, range(40), {})
    cache.blocks.reserve(1, 12)
    cache.blocks.commit(1, range(40), 12)
    assert cache.blocks.take_updates(1) == [(0, 0, [-1, 1, 2]), (0, 0, [-1])]
    cache.blocks.reserve(1, 16)
    cache.blocks.commit(1, range(40), 16)
    assert cache.blocks.take_updates(1) == [(0, 3, [3]), (0, 1, [-1])]


def test_hit_needs_only_the_blocks_in_the_window(driver) -> None:
    cache = driver(FULL, GroupLayout(num_blocks=7, block_size=4, sliding_window=8))
    cache.open(1, range(24))
    cache.step(1)
    cache.open(2, range(100, 112))
    cache.step(2)  # takes one free block and two that sequence 1 has released
    assert cache.open(3, range(24)) == 20
    assert cache.blocks.block_table(3, 1)[:3] == [-1, -1, -1]
    cache.step(3)
    cache.check()


def test_hit_shrinks_to_the_longest_prefix_whose_window_is_there(driver) -> None:
    cache = driver(FULL, WINDOW)
    cache.open(1, range(24))
    cache.step(1)
    cache.open(2, range(8))
    held = cache.blocks.block_table(2, 1)
    assert held != [-1]
    for filler in range(3, 6):
        cache.open(filler, range(100 * filler, 100 * filler + 20))
        cache.step(filler)
    cache.check()
    assert cache.open(9, [*range(8), 77, 78]) in (0, 4, 8)
    cache.step(9)
    cache.check()


def test_hit_is_none_when_the_window_has_a_hole(driver) -> None:
    cache = driver(GroupLayout(num_blocks=3, block_size=4, sliding_window=8))
    cache.open(1, range(12))
    cache.step(1)  # its first block is cached, the other two are held
    cache.open(2, range(100, 104))
    cache.step(2)  # takes the first block
    assert cache.open(3, range(8)) == 0
    assert cache.open(4, range(13)) == 12


def test_window_of_one_token_needs_no_block_for_a_hit(driver) -> None:
    cache = driver(FULL, GroupLayout(num_blocks=4, block_size=4, sliding_window=1))
    cache.open(1, range(16))
    cache.step(1)
    assert cache.open(2, range(17)) == 16
    cache.step(2)
    cache.check()


def test_truncate_refuses_to_uncover_what_is_released(driver) -> None:
    cache = driver(WINDOW)
    cache.open(1, range(40))
    cache.step(1, 20)
    with pytest.raises(ValueError, match="cannot go back to 18 tokens: a window of 8 has released"):
        cache.truncate(1, 18)
    cache.truncate(1, 19)
    cache.check()


def test_released_blocks_can_be_hit_while_the_sequence_goes_on(driver) -> None:
    cache = driver(FULL, WINDOW)
    cache.open(1, range(40))
    for stop in (10, 20, 30, 40):
        cache.step(1, stop)
    assert cache.open(2, range(17)) == 16
    cache.step(2)
    cache.check()
