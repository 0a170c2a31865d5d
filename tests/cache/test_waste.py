"""KV waste: how it is counted, and how much there is on a mixed workload."""

from random import Random

import pytest

from pageport.cache.block_manager import BlockManager
from pageport.cache.layout import GroupLayout
from pageport.cache.waste import WasteMeter


def test_meter_averages_over_steps_in_which_something_is_held() -> None:
    meter = WasteMeter()
    for tokens, slots in ((0, 0), (12, 16), (16, 16), (0, 0), (24, 32)):
        meter.record(tokens, slots)
    assert meter.average == pytest.approx((0.25 + 0 + 0.25) / 3)


def test_usage_counts_shared_blocks_once_and_cached_ones_not_at_all(cache) -> None:
    cache.open(1, range(24))
    cache.step(1)
    cache.fork(1, 2)
    cache.open(3, range(100, 148))
    cache.step(3)
    cache.free(3)
    usage = cache.blocks.usage()
    assert (usage.total, usage.used, usage.cached, usage.free) == ((16,), (2,), (3,), (11,))
    assert (usage.tokens_stored, usage.waste_ratio) == ((24,), (0.25,))


def test_copied_block_stores_its_own_tokens(cache) -> None:
    cache.open(1, range(24))
    cache.step(1)
    cache.fork(1, 2)
    cache.decode(2, 99)
    assert cache.blocks.usage().tokens_stored == (16 + 8 + 9,)


def test_truncated_tokens_are_stored_no_longer_once_overwritten(cache) -> None:
    cache.open(1, range(30))
    cache.step(1)
    cache.truncate(1, 20)
    cache.decode(1, 99)
    assert cache.blocks.usage().tokens_stored == (21,)


def test_reserved_tokens_are_waste_until_they_are_committed(cache) -> None:
    cache.open(1, range(32))
    cache.run(1, 32)
    assert cache.blocks.usage().waste_ratio == (1.0,)
    cache.commit(1)
    assert cache.blocks.usage().waste_ratio == (0.0,)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_blocks", [3200, 600])
def test_waste_on_a_mixed_workload_is_under_four_percent(driver, depth: int, num_blocks: int) -> None:
    """64 requests at once, prompts of 32 … 512 and outputs of 16 … 256 tokens; 600 blocks cannot hold them all."""
    random = Random(2)
    blocks = driver(
        GroupLayout(num_blocks=num_blocks, block_size=16),
        GroupLayout(num_blocks=num_blocks, block_size=16, sliding_window=512),
    ).blocks
    simulate(blocks, [(random.randint(32, 512), random.randint(16, 256)) for _ in range(64)], depth)
    full, sliding = blocks.average_waste()
    assert 0.005 < full < 0.04
    assert 0.005 < sliding < 0.04
    assert blocks.usage().used == (0, 0)


def simulate(blocks: BlockManager, lengths: list[tuple[int, int]], depth: int, token_budget: int = 2048) -> None:
    """Continuous batching: running sequences first, then new prompts in chunks; commits come ``depth`` steps late."""
    prompts, totals = [prompt for prompt, _ in lengths], [prompt + output for prompt, output in lengths]
    tokens = [list(range(1000 * i, 1000 * i + total)) for i, total in enumerate(totals)]
    waiting, computed, in_flight = list(range(len(lengths))), {}, []
    while waiting or computed or in_flight:
        promised = sum(blocks.blocks_for(0, totals[i]) for i in computed)
        while waiting and promised + blocks.blocks_for(0, totals[waiting[0]]) <= blocks.usage().total[0]:
            promised += blocks.blocks_for(0, totals[waiting[0]])
            computed[waiting[0]] = blocks.open(waiting[0], tokens[waiting[0]], {})
            del waiting[0]
        step, budget = [], token_budget
        for i, done in computed.items():
            count = min(budget, max(prompts[i] - done, 1), totals[i] - done)
            if count:
                assert blocks.reserve(i, done + count) is not None
                computed[i], budget = done + count, budget - count
                step.append(i)
        in_flight.append([(i, computed[i]) for i in step])
        if len(in_flight) > depth or not step:
            for i, stop in in_flight.pop(0):
                blocks.commit(i, tokens[i], stop)
                if stop == totals[i]:
                    blocks.free(i)
                    del computed[i]
            blocks.record_waste()
        in_flight = [step for step in in_flight if step]
