"""The KV pool: what is written where, copies, export and import."""

import pytest
import torch

from pageport.backend import AttentionParams, Memory
from pageport.errors import OutOfMemory, UnsupportedFeature

from .conftest import kv_spec

PARAMS = AttentionParams(scale=1.0)


def written_pool(device, spec, num_blocks):
    """Return a pool whose every value is different, and its content as bytes a block."""
    pool = device.allocate_kv(spec, num_blocks)
    slots = torch.randperm(num_blocks * spec.block_size, generator=torch.Generator().manual_seed(1))
    for layer in range(spec.num_layers):
        key = torch.randn(len(slots), spec.num_kv_heads, spec.head_size)
        value = torch.randn(len(slots), spec.num_kv_heads, spec.value_head_size)
        device.write_kv(pool, layer, key, value, slots, PARAMS)
    return pool, exported(device, pool, range(num_blocks))


def exported(device, pool, block_ids):
    out = torch.zeros(len(block_ids), device.bytes_per_block(pool.spec), dtype=torch.uint8)
    device.export_blocks(pool, list(block_ids), out)
    return out


def test_slot_is_block_times_block_size_plus_offset(device):
    spec = kv_spec(value_head_size=12)
    pool = device.allocate_kv(spec, 3)
    pool.key.zero_()
    pool.value.zero_()
    key, value = torch.randn(2, 2, 8), torch.randn(2, 2, 12)
    device.write_kv(pool, 1, key, value, torch.tensor([9, 2]), PARAMS)
    assert torch.equal(pool.key[1, 2, :, 1], key[0])
    assert torch.equal(pool.value[1, 0, :, 2], value[1])
    assert torch.count_nonzero(pool.key) == key.numel()
    assert torch.count_nonzero(pool.value) == value.numel()


def test_padding_slots_change_no_block(device):
    pool, before = written_pool(device, kv_spec(), 3)
    device.write_kv(pool, 0, torch.ones(4, 2, 8), torch.ones(4, 2, 8), torch.full((4,), -1), PARAMS)
    assert torch.equal(exported(device, pool, range(3)), before)


def test_bytes_per_block_counts_all_layers_heads_and_both_halves(device):
    assert device.bytes_per_block(kv_spec()) == 2 * 4 * 2 * (8 + 8) * 4
    assert device.bytes_per_block(kv_spec(value_head_size=24, dtype="bfloat16")) == 2 * 4 * 2 * (8 + 24) * 2
    assert device.bytes_per_block(kv_spec(dtype="float8_e5m2")) == 2 * 4 * 2 * (8 + 8)
    # One float32 scale for a token's and head's key, and one for its value.
    assert device.bytes_per_block(kv_spec(dtype="int8")) == 2 * 4 * 2 * (8 + 8 + 4 + 4)


@pytest.mark.parametrize("dtype", ["float32", "float8_e5m2", "int8"])
def test_copies_take_all_layers_and_nothing_else(device, dtype):
    pool, before = written_pool(device, kv_spec(dtype=dtype), 5)
    device.copy_blocks(pool, [(0, 3), (4, 1)])
    assert torch.equal(exported(device, pool, range(5)), before[[0, 4, 2, 0, 4]])


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 2), (2, 3)], [0, 1, 1, 1]),
        ([(2, 3), (1, 2)], [0, 1, 1, 2]),
        ([(0, 1), (1, 0)], [0, 0, 2, 3]),
        ([(0, 1), (2, 1)], [0, 2, 2, 3]),
        ([(0, 1), (1, 2), (3, 1)], [0, 3, 0, 3]),
        ([], [0, 1, 2, 3]),
    ],
)
def test_copies_happen_in_the_given_order(device, pairs, expected):
    pool, before = written_pool(device, kv_spec(), 4)
    device.copy_blocks(pool, pairs)
    assert torch.equal(exported(device, pool, range(4)), before[expected])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int8"])
def test_exported_blocks_come_back_elsewhere_byte_for_byte(device, dtype):
    spec = kv_spec(dtype=dtype, value_head_size=12)
    pool, before = written_pool(device, spec, 4)
    other, untouched = written_pool(device, spec, 6)
    device.import_blocks(other, [5, 0], exported(device, pool, [1, 3]))
    expected = untouched.clone()
    expected[[5, 0]] = before[[1, 3]]
    assert torch.equal(exported(device, other, range(6)), expected)
    assert untouched.shape[1] == device.bytes_per_block(spec)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8_e4m3fn"}, "KV dtype float8_e4m3fn; it does float32, bfloat16, float16, float8_e5m2"),
        ({"block_size": 5}, "block size 5; it does 1, 4, 16"),
    ],
)
def test_undeclared_pools_are_refused(device, change, message):
    with pytest.raises(UnsupportedFeature, match=message):
        device.allocate_kv(kv_spec(**change), 4)


def test_pool_that_does_not_fit_is_refused_with_the_arithmetic(device, monkeypatch):
    memory = Memory(total=2**21, free=2**20, reserved_by_this_process=0)
    monkeypatch.setattr(type(device), "memory", lambda _: memory)
    with pytest.raises(OutOfMemory, match=r"2000 blocks of 1024 bytes takes 0.00 GiB.*At most 1023 blocks fit"):
        device.allocate_kv(kv_spec(), 2000)
    device.allocate_kv(kv_spec(), 1023)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_fixed_scales_are_refused_by_other_caches_than_those_of_8_bit_floats(device, dtype):
    pool = device.allocate_kv(kv_spec(dtype=dtype), 1)
    params = AttentionParams(scale=1.0, k_scale=torch.tensor(2.0))
    with pytest.raises(UnsupportedFeature, match=f"{dtype} takes no k_scale"):
        device.write_kv(pool, 0, torch.ones(1, 2, 8), torch.ones(1, 2, 8), torch.tensor([0]), params)


def test_integers_are_127ths_of_the_largest_of_a_token_and_head(device):
    pool = device.allocate_kv(kv_spec(dtype="int8"), 2)
    value = torch.randn(3, 2, 8) * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    value[1, 0] = 0
    device.write_kv(pool, 1, value, value, torch.tensor([4, 0, 6]), PARAMS)
    for token, offset in ((0, 4), (1, 0), (2, 6)):
        integers = pool.value[1, offset // 4, :, offset % 4]
        scale = pool.value_scale[1, offset // 4, :, offset % 4, None]
        assert torch.allclose(scale[:, 0] * 127, value[token].abs().amax(-1))
        assert ((integers * scale - value[token]).abs() <= 0.501 * scale).all()


def test_8_bit_floats_are_divided_by_their_scale_and_saturate(device):
    pool = device.allocate_kv(kv_spec(dtype="float8_e5m2"), 1)
    params = AttentionParams(scale=1.0, v_scale=torch.tensor(0.5))
    value = torch.tensor([1.0, -1.2, 1e6, -1e6, torch.nan, 0.0, 3e4, 1e-9]).expand(1, 2, 8)
    device.write_kv(pool, 0, value, value, torch.tensor([1]), params)
    expected = torch.tensor([2.0, -2.5, 57344.0, -57344.0, torch.nan, 0.0, 57344.0, 0.0])
    assert torch.equal(pool.value[0, 0, 1, 1].float().nan_to_num(-1), expected.nan_to_num(-1))
    assert pool.key[0, 0, 1, 1, 0] == 1.0


def test_freed_pool_holds_nothing(device):
    pool = device.allocate_kv(kv_spec(), 2)
    device.free_kv(pool)
    assert pool.key.numel() == pool.value.numel() == 0
