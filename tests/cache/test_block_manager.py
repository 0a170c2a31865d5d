"""``BlockManager``: capacity, all-or-nothing reservations, updates for the runner, errors."""

import subprocess
import sys

import pytest

from pageport.cache.errors import UnknownSequence
from pageport.cache.layout import GroupLayout

FULL = GroupLayout(num_blocks=50, block_size=16)
WINDOW = GroupLayout(num_blocks=11, block_size=16, sliding_window=100)


def test_capacity_is_that_of_the_smallest_full_group(driver) -> None:
    """Case LIM-03: the edge refuses what can never fit."""
    assert driver(FULL).blocks.max_sequence_tokens == 800
    assert driver(FULL, GroupLayout(num_blocks=20, block_size=32)).blocks.max_sequence_tokens == 640


def test_window_that_fits_does_not_limit_the_length(driver) -> None:
    assert driver(FULL, WINDOW, max_tokens_per_step=62).blocks.max_sequence_tokens == 800
    assert driver(WINDOW, max_tokens_per_step=62).blocks.max_sequence_tokens == sys.maxsize


def test_window_that_does_not_fit_limits_the_length_like_a_full_group(driver) -> None:
    assert driver(FULL, WINDOW, max_tokens_per_step=63).blocks.max_sequence_tokens == 176


def test_blocks_for_a_length(driver) -> None:
    blocks = driver(FULL, WINDOW, max_tokens_per_step=32).blocks
    assert [blocks.blocks_for(0, n) for n in (0, 1, 16, 17, 800)] == [0, 1, 1, 2, 50]
    assert [blocks.blocks_for(1, n) for n in (0, 1, 16, 17, 800)] == [0, 1, 1, 2, 10]


def test_longest_sequence_can_really_be_computed(driver) -> None:
    cache = driver(GroupLayout(num_blocks=6, block_size=16))
    cache.open(1, range(97))
    assert all(cache.step(1, n) for n in range(1, 97))
    assert not cache.step(1, 97)


def test_reservation_is_all_or_nothing_over_groups(driver) -> None:
    cache = driver(GroupLayout(num_blocks=9, block_size=4), GroupLayout(num_blocks=2, block_size=4))
    cache.open(1, range(9))
    assert cache.blocks.reserve(1, 9) is None
    assert cache.blocks.free_blocks() == (9, 2)
    assert cache.blocks.block_table(1, 0) == []
    assert cache.blocks.reserve(1, 8) == []
    assert cache.blocks.free_blocks() == (7, 0)


def test_reserving_the_same_again_changes_nothing(cache) -> None:
    cache.open(1, range(40))
    cache.blocks.reserve(1, 20)
    table = cache.blocks.block_table(1, 0)
    assert cache.blocks.reserve(1, 20) == []
    assert cache.blocks.reserve(1, 5) == []
    assert cache.blocks.block_table(1, 0) == table


def test_cached_blocks_count_as_free(cache) -> None:
    cache.open(1, range(40))
    cache.step(1)
    assert cache.blocks.free_blocks() == (13,)
    cache.free(1)
    assert cache.blocks.free_blocks() == (16,)
    assert cache.blocks.usage().cached == (2,)


def test_truncate_gives_back_what_was_not_run(cache) -> None:
    cache.open(1, range(40))
    cache.step(1, 20)
    cache.blocks.reserve(1, 100)
    assert cache.blocks.free_blocks() == (9,)
    cache.blocks.truncate(1, 20)
    assert cache.blocks.free_blocks() == (14,)
    assert cache.step(1)
    cache.check()


def test_unknown_sequence_is_an_error_wherever_it_is_named(cache) -> None:
    """Case ABT-02: nothing is freed twice."""
    cache.open(1, [1])
    cache.free(1)
    blocks = cache.blocks
    for call in (blocks.free, blocks.swap_out, blocks.swap_in, blocks.take_updates):
        with pytest.raises(UnknownSequence, match="sequence 1 owns no blocks"):
            call(1)
    for call in (lambda: blocks.reserve(1, 2), lambda: blocks.fork(1, 2), lambda: blocks.truncate(1, 0)):
        with pytest.raises(UnknownSequence):
            call()


def test_sequence_cannot_be_opened_twice(cache) -> None:
    cache.open(1, [1, 2])
    cache.open(2, [1, 2])
    with pytest.raises(ValueError, match="sequence 1 is open already"):
        cache.blocks.open(1, [3], {})
    with pytest.raises(ValueError, match="sequence 1 is open already"):
        cache.blocks.fork(2, 1)


def test_updates_are_what_changed_since_they_were_taken(cache) -> None:
    blocks = cache.blocks
    blocks.open(1, range(60), {})
    assert blocks.take_updates(1) == []
    blocks.reserve(1, 20)
    assert blocks.take_updates(1) == [(0, 0, [0, 1])]
    blocks.reserve(1, 30)
    assert blocks.take_updates(1) == []
    blocks.reserve(1, 50)
    assert blocks.take_updates(1) == [(0, 2, [2, 3])]


def test_updates_of_an_adopted_prefix_and_of_a_fork_are_the_whole_table(cache) -> None:
    cache.open(1, range(40))
    cache.step(1)
    cache.open(2, range(40))
    assert cache.blocks.take_updates(2) == [(0, 0, [0, 1])]
    cache.fork(1, 3)
    assert cache.blocks.take_updates(3) == [(0, 0, [0, 1, 2])]
    cache.blocks.reserve(3, 41)
    assert cache.blocks.take_updates(3) == [(0, 2, [3])]
    assert cache.blocks.take_updates(1) == []


def test_repeated_runs_leave_no_block_behind(cache) -> None:
    """Case ABT-01: the block count returns to where it was, however far a sequence got."""
    for round_number in range(200):
        cache.open(round_number, range(round_number % 90 + 1))
        cache.step(round_number)
        cache.free(round_number)
    assert cache.blocks.free_blocks() == (16,)
    cache.check()


def test_cache_needs_neither_tensors_nor_arrays() -> None:
    code = "import sys, pageport.cache.block_manager; print({'torch', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
