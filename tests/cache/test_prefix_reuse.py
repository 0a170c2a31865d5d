"""Prefix caching: what is found, what must not be found, and what is evicted."""

import pytest

from pageport.cache.layout import GroupLayout


@pytest.mark.parametrize(
    ("length", "cached"),
    [(1, 0), (15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (47, 32), (48, 32), (49, 48)],
)
def test_second_prompt_leaves_one_token_to_compute(cache, length: int, cached: int) -> None:
    """Case KVC-01: also when the length is a multiple of the block size."""
    prompt = list(range(length))
    assert cache.open(1, prompt) == 0
    cache.step(1)
    assert cache.open(2, prompt) == cached
    cache.step(2)
    cache.check()


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_longer_prompt_still_hits_after_a_full_hit(cache, length: int) -> None:
    """Case KVC-01: the chain of the recomputed last block stays right."""
    for sequence_id in (1, 2):
        cache.open(sequence_id, range(length))
        cache.step(sequence_id)
        cache.free(sequence_id)
    assert cache.open(3, range(length + 20)) == length // 16 * 16
    cache.step(3)
    cache.check()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"adapter": "S"}, {}),
        ({}, {"adapter": "S"}),
        ({"adapter": "S"}, {"salt": "S"}),
        ({}, {"salt": ""}),
        ({"salt": "tenant-1"}, {"salt": "tenant-2"}),
        ({"adapter": "A", "salt": "x"}, {"adapter": "A"}),
        ({"adapter": "A#load-1"}, {"adapter": "A#load-2"}),
        ({"image": "sha256:1"}, {"image": "sha256:2"}),
    ],
)
def test_other_cache_keys_do_not_hit(cache, first: dict[str, str], second: dict[str, str]) -> None:
    """Cases KVC-03, KVC-04, KVC-11."""
    cache.open(1, range(40), first)
    cache.step(1)
    assert cache.open(2, range(40), second) == 0
    assert cache.open(3, range(40), first) == 32
    cache.check()


def test_equal_cache_keys_hit(cache) -> None:
    cache.open(1, range(40), {"adapter": "A", "salt": "x"})
    cache.step(1)
    assert cache.open(2, range(40), {"salt": "x", "adapter": "A"}) == 32


def test_generated_tokens_are_found_in_a_second_turn(cache) -> None:
    cache.open(1, range(30))
    cache.step(1)
    for token_id in range(30, 36):
        cache.decode(1, token_id)
    assert cache.open(2, [*range(36), 99]) == 32
    cache.check()


def test_both_continuations_of_a_fork_are_found(cache) -> None:
    cache.open(1, range(20))
    cache.step(1)
    cache.fork(1, 2)
    for token_id in range(12):
        cache.decode(1, 100 + token_id)
        cache.decode(2, 200 + token_id)
    assert cache.open(3, [*range(20), *range(100, 113)]) == 32
    assert cache.open(4, [*range(20), *range(200, 213)]) == 32
    assert cache.blocks.block_table(3, 0) != cache.blocks.block_table(4, 0)
    cache.check()


def test_child_indexes_what_its_parent_never_committed(cache) -> None:
    cache.open(1, range(40))
    cache.run(1, 40)
    cache.fork(1, 2)
    cache.free(1)
    cache.commit(2)
    assert cache.open(3, range(40)) == 32
    cache.check()


def test_what_replaces_truncated_tokens_is_found(cache) -> None:
    cache.open(1, range(48))
    cache.step(1)
    cache.truncate(1, 20)
    cache.tokens[1].extend(range(500, 528))
    cache.step(1)
    assert cache.open(2, [*range(20), *range(500, 529)]) == 48
    cache.check()


def test_truncate_forgets_hashes_of_tokens_that_were_only_looked_up(cache) -> None:
    cache.open(1, range(17))
    cache.truncate(1, 0)
    cache.tokens[1].extend(range(500, 520))
    cache.step(1)
    assert cache.open(2, range(17)) == 0
    assert cache.open(3, range(500, 520)) == 16
    cache.check()


def test_reading_can_be_switched_off_for_one_sequence(cache) -> None:
    """Case LOG-02: prompt logprobs need every position computed."""
    cache.open(1, range(33))
    cache.step(1)
    assert cache.open(2, range(33), read_prefix=False) == 0
    assert cache.open(3, range(33)) == 32


def test_nothing_is_found_with_prefix_caching_off(driver) -> None:
    cache = driver(GroupLayout(num_blocks=16, block_size=16), enable_prefix_caching=False)
    cache.open(1, range(33))
    cache.step(1)
    cache.free(1)
    assert cache.open(2, range(33)) == 0
    assert cache.blocks.usage().cached == (0,)


def test_reserved_but_uncommitted_tokens_are_not_found(cache) -> None:
    cache.open(1, range(40))
    cache.run(1, 40)
    assert cache.open(2, range(40)) == 0
    cache.commit(1, 20)
    assert cache.open(3, range(40)) == 16


def test_content_that_is_indexed_already_stays_outside_the_index(cache) -> None:
    for sequence_id in (1, 2):
        cache.open(sequence_id, range(32))
    for sequence_id in (1, 2):
        cache.step(sequence_id)
    cache.free(2)
    assert cache.blocks.usage().cached == (0,)
    cache.free(1)
    assert cache.blocks.usage().cached == (2,)
    cache.check()


def test_blocks_held_since_lookup_survive_a_full_cache(cache) -> None:
    """Case KVC-05: evicting between lookup and schedule takes nothing from the hit."""
    cache.open(1, range(33))
    cache.step(1)
    cache.free(1)
    assert cache.open(2, range(33)) == 32
    cache.open(3, range(1000, 1000 + 13 * 16))
    assert cache.step(3)
    assert cache.blocks.reserve(3, 16 * 16) is None
    assert cache.step(2)
    cache.check()


def test_shared_prefix_is_evicted_after_the_tails(cache) -> None:
    cache.open(1, range(48))
    cache.step(1)
    cache.free(1)
    cache.open(2, range(1000, 1000 + 14 * 16))
    cache.step(2)
    assert cache.blocks.usage().cached == (2,)
    assert cache.open(3, range(48)) == 32


def test_least_recently_used_prefix_is_evicted_first(cache) -> None:
    for sequence_id, start in ((1, 0), (2, 100), (3, 0)):
        cache.open(sequence_id, range(start, start + 33))
        cache.step(sequence_id)
        cache.free(sequence_id)
    cache.open(4, range(1000, 1000 + 13 * 16))
    cache.step(4)
    assert cache.open(5, range(33)) == 32
    assert cache.open(6, range(100, 133)) == 16
    cache.check()


def test_prefix_is_whole_blocks_of_every_group(driver) -> None:
    cache = driver(GroupLayout(num_blocks=16, block_size=4), GroupLayout(num_blocks=16, block_size=6))
    cache.open(1, range(40))
    cache.step(1)
    assert cache.open(2, range(31)) == 24
    cache.step(2)
    cache.check()


def test_prefix_needs_every_full_group(driver) -> None:
    cache = driver(GroupLayout(num_blocks=20, block_size=4), GroupLayout(num_blocks=8, block_size=4))
    cache.open(1, range(17))
    cache.step(1)
    cache.free(1)
    cache.open(2, range(100, 124))
    cache.step(2)
    assert cache.open(3, range(17)) == 8
    cache.check()
