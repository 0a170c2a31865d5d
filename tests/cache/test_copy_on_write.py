"""Forked sequences: what is shared, what is copied, and when."""

import pytest

from pageport.cache.block_move import BlockMove
from pageport.cache.layout import GroupLayout


@pytest.mark.parametrize(("prompt", "copies"), [(500, 7), (496, 0)])
def test_each_extra_child_copies_at_most_one_block(driver, prompt: int, copies: int) -> None:
    cache = driver(GroupLayout(num_blocks=64, block_size=16))
    cache.open(0, range(prompt))
    cache.step(0)
    for child in range(1, 8):
        cache.fork(0, child)
    assert cache.blocks.usage().used == (-(-prompt // 16),)
    for token in range(40):
        for sequence_id in range(8):
            assert cache.decode(sequence_id, 1000 * sequence_id + token)
        cache.check()
    assert cache.num_copies == copies


def test_fork_before_the_prompt_is_committed_copies_no_more(driver) -> None:
    """Siblings sampled in the step of the last prompt chunk are forked before that step is done."""
    cache = driver(GroupLayout(num_blocks=64, block_size=16))
    cache.open(0, range(500))
    cache.run(0, 500)
    for child in range(1, 4):
        cache.fork(0, child)
    for sequence_id in range(4):
        cache.tokens[sequence_id].append(sequence_id)
        assert cache.run(sequence_id, 501)
    for sequence_id in range(4):
        cache.commit(sequence_id)
    cache.check()
    assert cache.num_copies == 3


def test_copy_names_source_and_target(cache) -> None:
    cache.open(1, range(20))
    cache.step(1)
    cache.fork(1, 2)
    assert cache.blocks.reserve(2, 21) == [BlockMove(0, [(1, 2)])]
    assert cache.blocks.reserve(2, 21) == []
    assert cache.blocks.reserve(1, 21) == []
    assert cache.blocks.block_table(2, 0) == [0, 2]


def test_copies_are_made_in_every_group(driver) -> None:
    cache = driver(GroupLayout(num_blocks=8, block_size=4), GroupLayout(num_blocks=8, block_size=8, sliding_window=8))
    cache.open(1, range(6))
    cache.step(1)
    cache.fork(1, 2)
    assert cache.blocks.reserve(2, 7) == [BlockMove(0, [(1, 2)]), BlockMove(1, [(0, 1)])]


def test_last_holder_writes_in_place(cache) -> None:
    cache.open(1, range(20))
    cache.step(1)
    cache.fork(1, 2)
    cache.free(1)
    assert cache.decode(2, 7)
    assert cache.num_copies == 0
    cache.check()


def test_copy_needs_a_block(driver) -> None:
    cache = driver(GroupLayout(num_blocks=2, block_size=16))
    cache.open(1, range(20))
    cache.step(1)
    cache.fork(1, 2)
    assert cache.blocks.reserve(2, 21) is None
    cache.check()
    cache.free(1)
    assert cache.decode(2, 21)


def test_child_of_a_child_diverges(cache) -> None:
    cache.open(1, range(20))
    cache.step(1)
    cache.fork(1, 2)
    cache.decode(2, 50)
    cache.fork(2, 3)
    for sequence_id in (1, 2, 3):
        cache.decode(sequence_id, 60 + sequence_id)
    cache.check()
    assert cache.num_copies == 2


def test_step_in_flight_keeps_writing_where_it_was_told(cache) -> None:
    """The child copies a block after the parent's step in flight has written to it."""
    cache.open(1, range(20))
    cache.step(1)
    cache.tokens[1].append(21)
    cache.run(1, 21)
    cache.fork(1, 2)
    cache.tokens[2].append(22)
    assert cache.run(2, 22)
    cache.commit(1)
    cache.commit(2)
    cache.check()


def test_truncating_into_an_indexed_block_takes_it_out_of_the_index(cache) -> None:
    cache.open(1, range(32))
    cache.step(1)
    cache.truncate(1, 24)
    cache.decode(1, 99)
    cache.check()
    assert cache.open(2, range(33)) == 16


def test_truncating_into_a_shared_block_copies_it(cache) -> None:
    cache.open(1, range(33))
    cache.step(1)
    cache.open(2, range(33))
    cache.truncate(1, 24)
    cache.decode(1, 99)
    cache.check()
    assert cache.num_copies == 1
    assert cache.open(3, range(33)) == 32
