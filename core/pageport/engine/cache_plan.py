"""Size the KV cache from free memory, and show the arithmetic. Plain ints."""

from collections.abc import Sequence
from dataclasses import dataclass

from pageport.cache.layout import GroupLayout
from pageport.config import CacheConfig, SchedulerConfig
from pageport.errors import ConfigurationError, OutOfMemory

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class GroupNeeds:
    """What one cache group's memory depends on."""

    bytes_per_block: int
    sliding_window: int | None


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Blocks of every group, the longest context they allow, and the arithmetic in words."""

    groups: tuple[GroupLayout, ...]
    max_model_len: int
    explanation: str


def plan_cache(
    needs: Sequence[GroupNeeds],
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    free_bytes: int,
    max_model_len: int,
    max_model_len_is_explicit: bool,
) -> CachePlan:
    """Divide the memory the cache may have among the groups.

    A sliding group gets what ``max_num_seqs`` windows and one step's tokens need, at most its share of the memory;
    full groups get the rest, at most ``max_num_seqs`` full contexts.

    Raises:
        OutOfMemory: not one context of an explicit ``max_model_len`` fits; says the largest that would.
    """
    if not 0 < cache.gpu_memory_utilization <= 1:
        raise ConfigurationError(
            f"gpu_memory_utilization is {cache.gpu_memory_utilization}; it is a share of free memory: use 0.05 … 1."
        )
    size, budget = cache.block_size, int(free_bytes * cache.gpu_memory_utilization)
    blocks = _divide(needs, cache, scheduler, budget, max_model_len)
    fits = min(
        (count * size for count, need in zip(blocks, needs, strict=True) if need.sliding_window is None),
        default=max_model_len,
    )
    short = [
        (count, need)
        for count, need in zip(blocks, needs, strict=True)
        if need.sliding_window is not None and count < _window_blocks(need.sliding_window, 1, size, scheduler)
    ]
    arithmetic = (
        f"{budget / GIB:.2f} GiB ({cache.gpu_memory_utilization:.0%} of {free_bytes / GIB:.2f} GiB free) at "
        f"{sum(need.bytes_per_block for need in needs) / size / 1024:.1f} KiB a token"
    )
    if short or fits < 1 or (fits < max_model_len and max_model_len_is_explicit):
        largest = 0 if short else fits
        way_out = "raise --num-kv-blocks" if cache.num_kv_blocks and not short else "free memory"
        raise OutOfMemory(
            f"The KV cache cannot hold one context of {max_model_len} tokens: {arithmetic}. The largest "
            f"max_model_len that fits is {largest}. Lower --max-model-len, or {way_out}."
        )
    groups = tuple(
        GroupLayout(
            num_blocks=count,
            block_size=size,
            sliding_window=need.sliding_window,
            num_host_blocks=_host_blocks(needs, need, cache),
        )
        for count, need in zip(blocks, needs, strict=True)
    )
    total = sum(count * need.bytes_per_block for count, need in zip(blocks, needs, strict=True))
    context = min(fits, max_model_len)
    parts = ", ".join(
        f"{group.num_blocks} blocks" + (f" (window {group.sliding_window})" if group.sliding_window else "")
        for group in groups
    )
    explanation = f"{parts} of {size} tokens, {total / GIB:.2f} GiB; allowed: {arithmetic}"
    return CachePlan(groups=groups, max_model_len=context, explanation=explanation)


def _window_blocks(window: int, num_seqs: int, size: int, scheduler: SchedulerConfig) -> int:
    """Blocks ``num_seqs`` windows need, each cut at both ends, plus one step's new tokens."""
    return num_seqs * (-(-window // size) + 2) + -(-scheduler.step_tokens // size)


def _divide(
    needs: Sequence[GroupNeeds], cache: CacheConfig, scheduler: SchedulerConfig, budget: int, max_model_len: int
) -> list[int]:
    size, seqs = cache.block_size, scheduler.max_num_seqs
    context_blocks = -(-max_model_len // size)
    all_bytes = sum(need.bytes_per_block for need in needs)
    blocks, rest = [0] * len(needs), budget
    for i, need in enumerate(needs):
        if need.sliding_window is None:
            continue
        wanted = min(_window_blocks(need.sliding_window, seqs, size, scheduler), seqs * context_blocks)
        blocks[i] = min(wanted, budget // all_bytes)
        rest -= blocks[i] * need.bytes_per_block
    full_bytes = sum(need.bytes_per_block for need in needs if need.sliding_window is None)
    for i, need in enumerate(needs):
        if need.sliding_window is None:
            blocks[i] = cache.num_kv_blocks or min(seqs * context_blocks, rest // full_bytes)
    if cache.num_kv_blocks and not full_bytes:
        blocks = [cache.num_kv_blocks] * len(needs)
    return blocks


def _host_blocks(needs: Sequence[GroupNeeds], need: GroupNeeds, cache: CacheConfig) -> int:
    share = cache.swap_space * GIB * need.bytes_per_block / sum(n.bytes_per_block for n in needs)
    return int(share // need.bytes_per_block)
