"""How memory becomes blocks."""

import pytest

from pageport.config import CacheConfig, SchedulerConfig
from pageport.engine.cache_plan import CachePlan, GroupNeeds, plan_cache
from pageport.errors import ConfigurationError, OutOfMemory

MIB = 1 << 20
FULL = GroupNeeds(bytes_per_block=MIB, sliding_window=None)
SLIDING = GroupNeeds(bytes_per_block=MIB, sliding_window=64)


def plan(needs: list[GroupNeeds], free_mib: int, context: int, explicit: bool = True, **cache: float) -> CachePlan:
    return plan_cache(
        needs,
        CacheConfig(**{"gpu_memory_utilization": 0.5, **cache}),  # type: ignore[arg-type]
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=128),
        free_bytes=free_mib * MIB,
        max_model_len=context,
        max_model_len_is_explicit=explicit,
    )


def test_plenty_of_memory_gives_every_sequence_a_full_context() -> None:
    assert [group.num_blocks for group in plan([FULL], 10_000, 160).groups] == [4 * 10]


def test_scarce_memory_gives_its_share() -> None:
    assert [group.num_blocks for group in plan([FULL], 60, 160).groups] == [30]


def test_a_sliding_group_gets_its_windows_and_one_step() -> None:
    sliding, full = plan([SLIDING, FULL], 100_000, 16_000).groups
    assert sliding.num_blocks == 4 * (64 // 16 + 2) + 128 // 16
    assert full.num_blocks == 4 * 1000


def test_a_sliding_group_never_takes_more_than_its_share() -> None:
    sliding, full = plan([SLIDING, FULL], 60, 160, explicit=False).groups
    assert (sliding.num_blocks, full.num_blocks) == (15, 15)


def test_an_explicit_context_that_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(OutOfMemory, match=r"160 tokens: 0\.00 GiB \(50% of 0\.01 GiB free\).* that fits is 80\."):
        plan([FULL], 10, 160)


def test_an_implicit_context_shrinks_to_what_fits() -> None:
    assert plan([FULL], 10, 160, explicit=False).max_model_len == 80


def test_nothing_fits_is_refused_even_when_implicit() -> None:
    with pytest.raises(OutOfMemory, match="that fits is 0"):
        plan([FULL], 1, 160, explicit=False)


@pytest.mark.parametrize("share", [0, -0.1, 1.5])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="share of free memory"):
        plan([FULL], 10, 160, gpu_memory_utilization=share)


def test_swap_space_is_divided_by_block_bytes() -> None:
    groups = plan([SLIDING, FULL], 10_000, 160, swap_space=1).groups
    assert [group.num_host_blocks for group in groups] == [512, 512]
