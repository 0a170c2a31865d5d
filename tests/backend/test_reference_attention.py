"""Paged attention of the reference against a dense float64 oracle.

Every pool starts as NaN: what no request wrote must not show.
"""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.device import Device
from pageport.backend.reference import attention_plan
from pageport.backend.reference.kv import ReferenceKVPool

from .conftest import dense_attention, kv_spec, make_batch

HEADS = 6


def attend(
    device: Device,
    spec: KVSpec,
    counts: Sequence[int],
    lengths: Sequence[int],
    params: AttentionParams,
    num_decodes: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return what the device computes and what the oracle says, for requests whose blocks are shuffled.

    Of a sliding group, blocks left of the window of this step's first query are gone: their entries are -1.
    """
    generator = torch.Generator().manual_seed(sum(lengths))
    size = spec.block_size
    needed = [-(-length // size) for length in lengths]
    ids = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    tables = [[ids.pop() for _ in range(blocks)] for blocks in needed]
    pool = poisoned_pool(device, spec, sum(needed) + 3)
    dtype = getattr(torch, spec.dtype)
    keys, values, expected = [], [], []
    for table, length in zip(tables, lengths, strict=True):
        keys.append(torch.randn(length, spec.num_kv_heads, spec.head_size, generator=generator).to(dtype))
        values.append(torch.randn(length, spec.num_kv_heads, spec.value_head_size, generator=generator).to(dtype))
        slots = torch.tensor([table[i // size] * size + i % size for i in range(length)], dtype=torch.int64)
        device.write_kv(pool, 1, keys[-1], values[-1], slots, params)
    query = torch.randn(sum(counts), HEADS, spec.head_size, generator=generator)
    batch = make_batch(tables, counts, lengths, size)
    batch.num_decodes = num_decodes
    if params.sliding_window:
        for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            gone = max(0, length - count - params.sliding_window + 1) // size
            batch.host.block_table[row, :gone] = -1
    batch.plan = device.plan(spec, batch)
    out = torch.full((sum(counts), HEADS, spec.value_head_size), torch.nan)
    device.attention(pool, 1, query, params, batch, out)
    for rows, key, value in zip(query.split(list(counts)), keys, values, strict=True):
        live = len(key) > 0
        expected.append(dense_attention(rows, key, value, params) if live else torch.zeros(len(rows), *out.shape[1:]))
    return out, torch.cat(expected).float() if expected else out


def poisoned_pool(device: Device, spec: KVSpec, num_blocks: int) -> ReferenceKVPool:
    pool = device.allocate_kv(spec, num_blocks)
    pool.key.fill_(torch.nan)
    pool.value.fill_(torch.nan)
    return pool


def assert_close(actual: Tensor, expected: Tensor) -> None:
    # float32 sums of at most a few hundred terms of size 1.
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 63, 64, 65])
def test_one_query_sees_its_whole_past_around_block_edges(device, length):
    assert_close(*attend(device, kv_spec(), [1], [length], AttentionParams(scale=0.3)))


@pytest.mark.parametrize("cached", [0, 1, 4, 7])
@pytest.mark.parametrize("count", [2, 4, 5, 63, 64, 65, 130])
def test_several_queries_after_a_cached_prefix_are_causal(device, cached, count):
    assert_close(*attend(device, kv_spec(), [count], [cached + count], AttentionParams(scale=0.3)))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_prefills_decodes_and_padding_share_a_step(device, block_size):
    counts, lengths = [1, 7, 1, 1, 70, 1, 3, 1], [9, 7, 0, 33, 81, 1, 5, 0]
    assert_close(*attend(device, kv_spec(block_size=block_size), counts, lengths, AttentionParams(scale=0.3)))


@pytest.mark.parametrize("num_decodes", [0, 2, 5])
def test_decodes_and_prefills_are_attended_apart(device, num_decodes):
    """Padding among either is zeroed by the half that has it."""
    counts, lengths = [1, 1, 1, 1, 1, 3, 1], [9, 33, 0, 1, 5, 8, 0]
    assert_close(*attend(device, kv_spec(), counts, lengths, AttentionParams(scale=0.3), num_decodes))


def test_each_half_leaves_the_tokens_of_the_other_alone(device):
    spec = kv_spec()
    batch = make_batch([[0], [1]], [1, 2], [1, 2], 4)
    batch.num_decodes = 1
    pool = poisoned_pool(device, spec, 2)
    params = AttentionParams(scale=1.0)
    device.write_kv(pool, 0, torch.ones(3, 2, 8), torch.ones(3, 2, 8), batch.slot_mapping, params)
    out = torch.full((3, HEADS, 8), torch.nan)
    device.decode_attention(pool, 0, torch.randn(3, HEADS, 8), params, batch, out)
    assert torch.equal(out[:1], torch.ones(1, HEADS, 8))
    assert out[1:].isnan().all()
    device.prefill_attention(pool, 0, torch.randn(3, HEADS, 8), params, batch, out)
    assert torch.equal(out, torch.ones(3, HEADS, 8))


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_query_heads_share_kv_heads_in_order(device, kv_heads):
    spec = kv_spec(num_kv_heads=kv_heads)
    assert_close(*attend(device, spec, [1, 5, 1], [11, 9, 3], AttentionParams(scale=0.3)))


def test_values_may_be_wider_than_keys(device):
    spec = kv_spec(value_head_size=12)
    assert_close(*attend(device, spec, [1, 5], [11, 9], AttentionParams(scale=0.3)))


@pytest.mark.parametrize("window", [1, 3, 4, 5, 16, 200])
def test_window_shows_only_the_last_keys_and_reads_no_freed_block(device, window):
    """Chunked prefill and decode over a sliding window (KVC-08)."""
    params = AttentionParams(scale=0.3, sliding_window=window)
    assert_close(*attend(device, kv_spec(), [1, 70, 1, 5, 65], [40, 97, 3, 23, 65], params))


VARIANTS = {
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": torch.linspace(-1, 2, HEADS)},
    "alibi": {"alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.03, 0.015])},
    "not causal": {"causal": False},
    "window, not causal": {"causal": False, "sliding_window": 6},
    "all": {
        "softcap": 0.7,
        "sinks": torch.linspace(-1, 2, HEADS),
        "alibi": torch.linspace(0.01, 0.5, HEADS),
        "sliding_window": 6,
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_the_oracle(device, name):
    """A cap, a sink or a slope that is dropped shows (ARC-01)."""
    params = AttentionParams(scale=0.8, **VARIANTS[name])
    actual, expected = attend(device, kv_spec(), [1, 9, 1, 66], [21, 9, 5, 90], params)
    assert_close(actual, expected)
    if not name.endswith("causal"):
        plain, _ = attend(device, kv_spec(), [1, 9, 1, 66], [21, 9, 5, 90], AttentionParams(scale=0.8))
        assert (plain - expected).abs().max() > 0.01


@pytest.mark.parametrize("name", ["plain", *VARIANTS])
def test_keys_that_need_several_tiles_give_the_same_answer(device, monkeypatch, name):
    """Without the bound, a long context would be gathered at once."""
    monkeypatch.setattr(attention_plan, "GATHER_BYTES", 3 * 4 * 4 * 2 * 16)  # three blocks
    params = AttentionParams(scale=0.8, **VARIANTS.get(name, {}))
    assert_close(*attend(device, kv_spec(), [1, 9, 1, 66, 1], [61, 9, 5, 90, 13], params))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_caches_are_read_in_float32(device, dtype):
    spec = kv_spec(dtype=dtype)
    assert_close(*attend(device, spec, [1, 9, 1], [61, 9, 5], AttentionParams(scale=0.3)))


def test_groups_of_single_queries_are_bounded_and_little_padded():
    spec = kv_spec(num_kv_heads=8, head_size=64, value_head_size=64, block_size=16)  # 64 KiB a block
    lengths = [16 * blocks for blocks in (100, 1, 60, 100, 90, 2, 30, 61, 1, 300)]
    tables = [list(range(length // 16)) for length in lengths]
    batch = make_batch(tables, [1] * len(lengths), lengths, 16)
    groups = attention_plan.plan(spec, batch).share(range(len(lengths)), None, True).groups
    assert sorted(group.requests for group in groups) == [1, 1, 1, 1, 1, 1, 2, 2]
    for group in groups:
        for tile in group.tiles:
            assert len(tile.blocks) // 8 * 64 * 1024 <= attention_plan.GATHER_BYTES
    assert sum(len(tile.blocks) // 8 for group in groups for tile in group.tiles) == 747


def test_empty_batch_is_no_work(device):
    out, _ = attend(device, kv_spec(), [], [], AttentionParams(scale=0.3))
    assert out.shape == (0, HEADS, 8)


def test_tokens_behind_the_last_request_are_zeroed(device):
    """A step padded to a bucket: more tokens than the requests have."""
    spec = kv_spec()
    batch = make_batch([[0]], [2], [2], 4)
    batch.num_tokens = 5
    pool = poisoned_pool(device, spec, 1)
    params = AttentionParams(scale=1.0)
    device.write_kv(pool, 0, torch.ones(5, 2, 8), torch.ones(5, 2, 8), torch.tensor([0, 1, -1, -1, -1]), params)
    out = torch.full((5, HEADS, 8), torch.nan)
    device.attention(pool, 0, torch.randn(5, HEADS, 8), params, batch, out)
    assert torch.equal(out[:2], torch.ones(2, HEADS, 8))
    assert torch.equal(out[2:], torch.zeros(3, HEADS, 8))


def test_query_may_be_a_view_into_fused_projections(device):
    spec = kv_spec()
    batch = make_batch([[1], [0]], [1, 3], [2, 3], 4)
    pool = poisoned_pool(device, spec, 2)
    fused = torch.randn(4, (HEADS + 4) * 8)
    query, key, value = (part.view(4, -1, 8) for part in fused.split([HEADS * 8, 16, 16], dim=1))
    params = AttentionParams(scale=0.5)
    device.write_kv(pool, 0, key[:1], value[:1], torch.tensor([4]), params)
    device.write_kv(pool, 0, key, value, batch.slot_mapping, params)
    actual, expected = torch.empty(4, HEADS, 8), torch.empty(4, HEADS, 8)
    device.attention(pool, 0, query, params, batch, actual)
    device.attention(pool, 0, query.contiguous(), params, batch, expected)
    assert torch.equal(actual, expected)
