"""The KV pool of the native device: what is stored where, and how blocks are copied."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.reference.kv_rounding import to_float8, to_int8
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.kv_rounding import rotated, rotated_features
from pageport.testing.conformance.oracle import as_floats
from pageport_cpu.kv_pool import (
    BLOCK_SIZES,
    KV_DTYPES,
    CpuKVPool,
    allocate_kv,
    bytes_per_block,
    copy_blocks,
    export_blocks,
    free_kv,
    import_blocks,
    layer_part,
    write_kv,
)
from pageport_cpu.library import Library
from pageport_cpu.memory import read_memory

PLAIN = AttentionParams(scale=1.0)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
ACTIVATIONS = (torch.float32, torch.bfloat16, torch.float16)
NUM_BLOCKS = 5


def make_spec(dtype: str = "float32", **changes: int) -> KVSpec:
    sizes = {"num_layers": 2, "num_kv_heads": 3, "head_size": 20, "value_head_size": 7, "block_size": 16} | changes
    return KVSpec(dtype=dtype, **sizes)  # type: ignore[arg-type]


class Stored(NamedTuple):
    """One layer of a pool, by slot."""

    key: Tensor  # [slots, kv_heads, head_size], as stored
    value: Tensor
    key_scale: Tensor | None  # [slots, kv_heads]
    value_scale: Tensor | None


def read(pool: CpuKVPool, layer: int) -> Stored:
    spec, part = pool.spec, layer_part(pool.spec)
    heads, size, dtype = spec.num_kv_heads, spec.block_size, getattr(torch, spec.dtype)
    memory = pool.memory[:, layer * part.end : (layer + 1) * part.end]
    scales = memory[:, part.key_scales :].contiguous().view(torch.float32).view(len(memory), -1, heads, size)
    by_slot = [scale.transpose(1, 2).reshape(-1, heads) for scale in scales.unbind(1)] or [None, None]
    if spec.dtype == "int8":
        integers = memory[:, : part.key_scales].contiguous().view(torch.int8)
        key = (integers[:, : part.values] ^ -128).reshape(len(memory), heads, -1, size, 4)
        key = key.permute(0, 3, 1, 2, 4).flatten(3)[..., : spec.head_size]
        value = integers[:, part.values :].reshape(len(memory), heads, size // 4, spec.value_head_size, 4)
        return Stored(key.flatten(0, 1), value.permute(0, 2, 4, 1, 3).flatten(0, 2), *by_slot)
    key = memory[:, : part.values].contiguous().view(dtype).view(-1, heads, spec.head_size, size)
    value = (
        memory[:, part.values : part.key_scales].contiguous().view(dtype).view(-1, heads, size, spec.value_head_size)
    )
    return Stored(
        key.permute(0, 3, 1, 2).reshape(-1, heads, spec.head_size),
        value.transpose(1, 2).reshape(-1, heads, spec.value_head_size),
        *by_slot,
    )


def random_tokens(spec: KVSpec, count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Views of one fused matrix, as a projection gives them; float32 sums of its numbers are exact in any order."""
    key_columns = spec.num_kv_heads * spec.head_size
    numbers = torch.randn(count, key_columns + spec.num_kv_heads * spec.value_head_size)
    fused = ((numbers * 1024).round() / 1024).to(dtype)
    key, value = fused[:, :key_columns], fused[:, key_columns:]
    return key.unflatten(1, (spec.num_kv_heads, -1)), value.unflatten(1, (spec.num_kv_heads, -1))


def to_round(key: Tensor, dtype: str, k_scale: float = 1.0) -> Tensor:
    """Return what a cache of this dtype rounds of keys, before it divides by ``k_scale``."""
    if dtype != "float8_e5m2":
        return key
    largest = torch.finfo(getattr(torch, dtype)).max * k_scale
    shares = rotated(as_floats(key.float().clamp(-largest, largest))) / rotated_features(key.shape[-1])
    return torch.from_numpy(shares).float()


def filled(library: Library, spec: KVSpec) -> CpuKVPool:
    pool = allocate_kv(spec, NUM_BLOCKS)
    slots = torch.arange(NUM_BLOCKS * spec.block_size)
    for layer in range(spec.num_layers):
        write_kv(library, pool, layer, *random_tokens(spec, len(slots)), slots, PLAIN)
    return pool


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_numbers_are_rounded_to_the_stored_dtype(library: Library, dtype: str, activation: torch.dtype) -> None:
    spec = make_spec(dtype)
    pool = filled(library, spec)
    key, value = random_tokens(spec, 70, activation)
    slots = torch.randperm(NUM_BLOCKS * spec.block_size)[:70]
    write_kv(library, pool, 1, key, value, slots, PLAIN)
    stored = read(pool, 1)
    assert same_bits(stored.key[slots], key.to(stored.key.dtype))
    assert same_bits(stored.value[slots], value.to(stored.value.dtype))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("scales", ((None, None), (0.05, 3.0)), ids=("unscaled", "scaled"))
@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_hold_quotients(
    library: Library, dtype: str, scales: tuple[float | None, float | None], activation: torch.dtype
) -> None:
    spec = make_spec(dtype)
    pool = filled(library, spec)
    key, value = random_tokens(spec, 40, activation)
    slots = torch.randperm(NUM_BLOCKS * spec.block_size)[:40]
    k_scale, v_scale = (None if scale is None else torch.tensor(scale) for scale in scales)
    write_kv(library, pool, 0, key, value, slots, AttentionParams(scale=1.0, k_scale=k_scale, v_scale=v_scale))
    stored = read(pool, 0)
    assert same_bits(stored.key[slots], to_float8(to_round(key, dtype, scales[0] or 1.0), stored.key.dtype, k_scale))
    assert same_bits(stored.value[slots], to_float8(value, stored.value.dtype, v_scale))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_round_to_nearest_even_and_saturate(library: Library, dtype: str) -> None:
    exact = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float()
    exact = exact[exact.isfinite()].unique()
    middles = (exact[1:] + exact[:-1]) / 2
    around = [torch.nextafter(middles, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    numbers = torch.cat([exact, middles, *around, torch.tensor([1e9, -1e9, torch.inf, -torch.inf, 1e-30, -0.0])])
    spec = make_spec(dtype, num_kv_heads=1, head_size=1, value_head_size=1, block_size=256)
    pool = allocate_kv(spec, 5)
    column = numbers.view(-1, 1, 1)
    write_kv(library, pool, 0, column, -column, torch.arange(len(numbers)), PLAIN)
    stored = read(pool, 0)
    assert same_bits(stored.key[: len(numbers)], to_float8(column, stored.key.dtype, None))
    assert same_bits(stored.value[: len(numbers)], to_float8(-column, stored.value.dtype, None))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_nan_stays_nan_in_eight_bit_floats(library: Library, dtype: str) -> None:
    spec = make_spec(dtype)
    pool = filled(library, spec)
    key, value = random_tokens(spec, 1)
    key[0, 1, 3] = value[0, 2, 6] = torch.nan
    write_kv(library, pool, 0, key, value, torch.tensor([17]), PLAIN)
    stored = read(pool, 0)
    # All four features that are rotated together are lost.
    assert torch.equal(stored.key[17].float().isnan(), to_round(key, dtype)[0].isnan())
    assert torch.equal(stored.value[17].float().isnan(), value[0].isnan())


@pytest.mark.parametrize("head_size", (1, 2, 7, 12, 24, 48, 64, 80, 96, 192, 1024))
def test_keys_of_e5m2_are_rotated_before_they_are_rounded(library: Library, head_size: int) -> None:
    spec = make_spec("float8_e5m2", head_size=head_size)
    pool = allocate_kv(spec, NUM_BLOCKS)
    key, value = random_tokens(spec, 9)
    slots = torch.randperm(NUM_BLOCKS * spec.block_size)[:9]
    write_kv(library, pool, 0, key, value, slots, PLAIN)
    stored = read(pool, 0).key[slots]
    # Numbers, not bits: sums of zeros may have either sign.
    assert torch.equal(stored.float(), to_float8(to_round(key, "float8_e5m2"), torch.float8_e5m2, None).float())
    turned_back = torch.from_numpy(rotated(as_floats(stored)))
    # Rounding takes up to an eighth of each number, of the length of a whole key therefore no more either.
    assert ((turned_back - key).norm(dim=-1) <= 0.126 * key.double().norm(dim=-1)).all()


@pytest.mark.parametrize("k_scale", (None, torch.tensor(0.0625)), ids=("unscaled", "scaled"))
def test_keys_of_e5m2_saturate_before_they_are_rotated(library: Library, k_scale: Tensor | None) -> None:
    spec = make_spec("float8_e5m2", num_kv_heads=1, head_size=64)
    pool = allocate_kv(spec, 1)
    key, value = random_tokens(spec, 3)
    # Sums of the largest number and of whole ones are exact. Two infinities would meet in a difference.
    key = key.round()
    key[0, 0, [3, 40]], key[1, 0, 5], key[2] = torch.inf, -torch.inf, 1e30
    write_kv(library, pool, 0, key, value, torch.arange(3), AttentionParams(scale=1.0, k_scale=k_scale))
    scale = 1.0 if k_scale is None else float(k_scale)
    expected = to_float8(to_round(key, "float8_e5m2", scale), torch.float8_e5m2, k_scale)
    assert torch.equal(read(pool, 0).key[:3].float(), expected.float())
    assert expected.float().isfinite().all()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_int8_scales_each_token_of_a_head(library: Library, activation: torch.dtype) -> None:
    spec = make_spec("int8")
    pool = filled(library, spec)
    key, value = random_tokens(spec, 50, activation)
    key[3] = 0
    slots = torch.randperm(NUM_BLOCKS * spec.block_size)[:50]
    write_kv(library, pool, 1, key, value, slots, PLAIN)
    stored = read(pool, 1)
    for given, integers, scale in ((key, stored.key, stored.key_scale), (value, stored.value, stored.value_scale)):
        expected = to_int8(given)
        assert torch.equal(integers[slots], expected.integers)
        assert scale is not None and torch.equal(scale[slots], expected.scale)


@pytest.mark.parametrize("bad", (torch.nan, torch.inf))
def test_int8_keeps_a_token_that_is_not_finite_as_nan(library: Library, bad: float) -> None:
    spec = make_spec("int8")
    pool = filled(library, spec)
    key, value = random_tokens(spec, 1)
    key[0, 1, 0] = bad
    write_kv(library, pool, 0, key, value, torch.tensor([5]), PLAIN)
    scale = read(pool, 0).key_scale
    assert scale is not None and scale[5].isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_padding_is_not_stored(library: Library, dtype: str) -> None:
    spec = make_spec(dtype)
    pool = filled(library, spec)
    before = pool.memory.clone()
    key, value = random_tokens(spec, 3)
    write_kv(library, pool, 0, key * torch.nan, value * torch.nan, torch.tensor([-1, -1, -1]), PLAIN)
    assert torch.equal(pool.memory, before)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_one_token_changes_its_own_slot_only(library: Library, dtype: str) -> None:
    spec = make_spec(dtype)
    pool = filled(library, spec)
    before = [read(pool, layer) for layer in range(2)]
    write_kv(library, pool, 1, *random_tokens(spec, 1), torch.tensor([33]), PLAIN)
    others = torch.arange(NUM_BLOCKS * spec.block_size) != 33
    for old, new in zip((*before[0], *before[1]), (*read(pool, 0), *read(pool, 1)), strict=True):
        assert old is None or (new is not None and same_bits(old[others], new[others]))


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_many_tokens_are_stored_as_each_alone(library: Library, dtype: str) -> None:
    spec = make_spec(dtype, head_size=64, value_head_size=64, block_size=256)
    together, alone = filled(library, spec), filled(library, spec)
    key, value = random_tokens(spec, 600)
    slots = torch.randperm(NUM_BLOCKS * 256)[:600]
    write_kv(library, together, 0, key, value, slots, PLAIN)
    for i in range(len(slots)):
        write_kv(library, alone, 0, key[i : i + 1], value[i : i + 1], slots[i : i + 1], PLAIN)
    for one, other in zip(read(together, 0), read(alone, 0), strict=True):
        assert one is None or (other is not None and same_bits(one[slots], other[slots]))


@pytest.mark.parametrize("dtype", ("bfloat16", "int8"))
def test_blocks_are_copied_one_after_the_other(every_library: Library, dtype: str) -> None:
    pool = filled(every_library, make_spec(dtype))
    for _ in range(10):
        pairs = [(source, target) for source, target in torch.randint(0, NUM_BLOCKS, (6, 2)).tolist()]
        expected = pool.memory.clone()
        for source, target in pairs:
            expected[target] = expected[source].clone()
        copy_blocks(pool, pairs)
        assert torch.equal(pool.memory, expected)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_exported_blocks_come_back_elsewhere(every_library: Library, dtype: str) -> None:
    spec = make_spec(dtype)
    pool = filled(every_library, spec)
    saved = torch.empty(2, bytes_per_block(spec), dtype=torch.uint8)
    export_blocks(pool, [4, 1], saved)
    before = read(pool, 1)
    import_blocks(pool, [0, 4], saved)
    for old, new in zip(before, read(pool, 1), strict=True):
        if old is not None and new is not None:
            old, new = old.unflatten(0, (NUM_BLOCKS, -1)), new.unflatten(0, (NUM_BLOCKS, -1))
            assert same_bits(new[[0, 4]], old[[4, 1]])
            assert same_bits(new[1:4], old[1:4])


def test_bytes_per_block_count_scales_too() -> None:
    tokens = 2 * 3 * 16
    assert bytes_per_block(make_spec("float32")) == tokens * 27 * 4
    assert bytes_per_block(make_spec("float8_e5m2")) == tokens * 27
    assert bytes_per_block(make_spec("int8")) == tokens * (27 + 8)
    assert bytes_per_block(make_spec("int8", head_size=21)) == tokens * (24 + 7 + 8)


@pytest.mark.parametrize(
    ("dtype", "changes", "named"),
    (
        ("float64", {}, "float64"),
        ("float32", {"block_size": 24}, "24"),
        ("float32", {"head_size": 1025}, "1025"),
    ),
)
def test_what_the_kernels_do_not_know_is_refused(dtype: str, changes: dict[str, int], named: str) -> None:
    with pytest.raises(UnsupportedFeature, match=named):
        allocate_kv(make_spec(dtype, **changes), 2)


@pytest.mark.parametrize("dtype", ("bfloat16", "int8"))
def test_fixed_scales_are_refused_for_what_is_no_eight_bit_float(every_library: Library, dtype: str) -> None:
    spec = make_spec(dtype)
    params = AttentionParams(scale=1.0, k_scale=torch.ones(()))
    with pytest.raises(UnsupportedFeature, match=dtype):
        write_kv(every_library, allocate_kv(spec, 1), 0, *random_tokens(spec, 1), torch.tensor([0]), params)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_memory_is_backed_when_it_is_used(block_size: int) -> None:
    spec = make_spec(block_size=block_size)
    before = read_memory().reserved_by_this_process
    pool = allocate_kv(spec, 2**30 // bytes_per_block(spec))
    assert read_memory().reserved_by_this_process - before < 2**26
    free_kv(pool)
    assert pool.memory.numel() == 0
