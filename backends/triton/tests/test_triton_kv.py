"""The KV pool of the Triton kernels: what is stored where, to the last bit, and how blocks are copied."""

import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.reference.kv_rounding import to_float8, to_int8
from pageport.backend.reference.ops import rope
from pageport.errors import OutOfMemory, UnsupportedFeature
from pageport_triton.configurations import CONFIGURATIONS, HEAD_CLASSES, INTERPRETER, Configuration, configuration_of
from pageport_triton.copy_blocks import copy_blocks, independent_runs
from pageport_triton.kv_pool import (
    KV_DTYPES,
    TritonKVPool,
    allocate_kv,
    bytes_per_block,
    export_blocks,
    import_blocks,
    layer_part,
)
from pageport_triton.write_kv import rope_write_kv, write_kv

# The interpreter computes with numpy, which warns where kernels mean to meet NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

PLAIN = AttentionParams(scale=1.0)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
CPU = torch.device("cpu")
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


def read(pool: TritonKVPool, layer: int) -> Stored:
    spec, part, memory = pool.spec, layer_part(pool.spec), pool.memory[layer]
    dtype: torch.dtype = getattr(torch, spec.dtype)

    def by_slot(start: int, end: int, kind: torch.dtype, size: int) -> Tensor:
        stored = memory[:, start:end].contiguous().view(kind).view(-1, spec.num_kv_heads, spec.block_size, size)
        return stored.transpose(1, 2).reshape(-1, spec.num_kv_heads, size)

    key = by_slot(part.keys, part.values, dtype, spec.head_size)
    value = by_slot(part.values, part.key_scales, dtype, spec.value_head_size)
    if spec.dtype != "int8":
        return Stored(key, value, None, None)
    key_scale = by_slot(part.key_scales, part.value_scales, torch.float32, 1).squeeze(-1)
    return Stored(key, value, key_scale, by_slot(part.value_scales, part.end, torch.float32, 1).squeeze(-1))


def random_tokens(spec: KVSpec, count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Views of one fused matrix, as a projection gives them."""
    key_columns = spec.num_kv_heads * spec.head_size
    fused = torch.randn(count, key_columns + spec.num_kv_heads * spec.value_head_size).to(dtype)
    key, value = fused[:, :key_columns], fused[:, key_columns:]
    return key.unflatten(1, (spec.num_kv_heads, -1)), value.unflatten(1, (spec.num_kv_heads, -1))


def filled(spec: KVSpec) -> TritonKVPool:
    pool = allocate_kv(spec, NUM_BLOCKS, CPU)
    pool.memory.copy_(torch.randint(256, pool.memory.shape, dtype=torch.uint8))
    return pool


def random_slots(spec: KVSpec, count: int) -> Tensor:
    return torch.randperm(NUM_BLOCKS * spec.block_size)[:count]


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("activation", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_numbers_are_rounded_to_the_stored_dtype(
    small_tiles: Configuration, dtype: str, activation: torch.dtype
) -> None:
    spec = make_spec(dtype)
    pool, slots = filled(spec), random_slots(spec, 30)
    key, value = random_tokens(spec, 30, activation)
    write_kv(pool, 1, key, value, slots, PLAIN, small_tiles)
    stored = read(pool, 1)
    assert same_bits(stored.key[slots], key.to(stored.key.dtype))
    assert same_bits(stored.value[slots], value.to(stored.value.dtype))


@pytest.mark.parametrize("scales", ((None, None), (0.05, 3.0)), ids=("unscaled", "scaled"))
@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_hold_quotients(dtype: str, scales: tuple[float | None, float | None]) -> None:
    spec = make_spec(dtype)
    pool, slots = filled(spec), random_slots(spec, 30)
    key, value = random_tokens(spec, 30)
    k_scale, v_scale = (None if scale is None else torch.tensor(scale) for scale in scales)
    params = AttentionParams(scale=1.0, k_scale=k_scale, v_scale=v_scale)
    write_kv(pool, 0, key, value, slots, params, INTERPRETER)
    stored = read(pool, 0)
    assert same_bits(stored.key[slots], to_float8(key, stored.key.dtype, k_scale))
    assert same_bits(stored.value[slots], to_float8(value, stored.value.dtype, v_scale))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_eight_bit_floats_round_to_nearest_even_and_saturate(dtype: str) -> None:
    exact = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float()
    exact = exact[exact.isfinite()].unique()
    middles = (exact[1:] + exact[:-1]) / 2
    around = [torch.nextafter(middles, torch.tensor(end)) for end in (-torch.inf, torch.inf)]
    special = torch.tensor([1e9, -1e9, torch.inf, -torch.inf, 1e-30, -0.0, torch.nan, 2.0**-127])
    numbers = torch.cat([exact, middles, *around, special])
    spec = make_spec(dtype, num_kv_heads=1, head_size=1, value_head_size=1, block_size=256)
    pool = allocate_kv(spec, 5, CPU)
    column = numbers.view(-1, 1, 1)
    write_kv(pool, 0, column, -column, torch.arange(len(numbers)), PLAIN, INTERPRETER)
    stored = read(pool, 0)
    assert same_bits(stored.key[: len(numbers)], to_float8(column, stored.key.dtype, None))
    assert same_bits(stored.value[: len(numbers)], to_float8(-column, stored.value.dtype, None))


def test_int8_holds_127ths_of_the_largest_of_a_head() -> None:
    spec = make_spec("int8")
    pool, slots = filled(spec), random_slots(spec, 30)
    key, value = random_tokens(spec, 30)
    key[3, 1], key[4, 0, 2], value[5] = 0, torch.nan, value[5] * 1e-20
    write_kv(pool, 0, key, value, slots, PLAIN, INTERPRETER)
    stored = read(pool, 0)
    for given_numbers, integers, scale in (
        (key, stored.key, stored.key_scale),
        (value, stored.value, stored.value_scale),
    ):
        expected = to_int8(given_numbers)
        assert torch.equal(integers[slots], expected.integers)
        torch.testing.assert_close(scale[slots], expected.scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_padding_and_other_layers_change_nothing(small_tiles: Configuration, dtype: str) -> None:
    spec = make_spec(dtype)
    pool = filled(spec)
    before = pool.memory.clone()
    key, value = random_tokens(spec, 6)
    key[::2] = value[::2] = torch.nan
    write_kv(pool, 1, key, value, torch.tensor([-1, 3, -1, 40, -1, 79]), PLAIN, small_tiles)
    after, part = read(pool, 1), read(TritonKVPool(spec, before, []), 1)
    others = [slot for slot in range(NUM_BLOCKS * spec.block_size) if slot not in (3, 40, 79)]
    assert torch.equal(pool.memory[0], before[0])
    assert not torch.equal(pool.memory[1], before[1])
    for one, other in zip(after, part, strict=True):
        assert one is None or same_bits(one[others], other[others])


@pytest.mark.parametrize("interleaved", (False, True), ids=("half", "interleaved"))
@pytest.mark.parametrize(
    ("dtype", "activation", "rotary_size"),
    (
        ("float32", torch.float32, 20),
        ("bfloat16", torch.bfloat16, 20),
        ("int8", torch.float16, 12),
        ("float8_e4m3fn", torch.float32, 8),
    ),
    ids=str,
)
def test_rotation_and_writing_in_one_is_one_after_the_other(
    small_tiles: Configuration, dtype: str, activation: torch.dtype, rotary_size: int, interleaved: bool
) -> None:
    spec = make_spec(dtype)
    fused, apart, slots = filled(spec), filled(spec), random_slots(spec, 12)
    slots[[0, 7]] = -1
    apart.memory.copy_(fused.memory)
    key, value = random_tokens(spec, 12, activation)
    query, positions = torch.randn(12, 6, 20).to(activation), torch.randint(50, (12,))
    angles = torch.rand(50, rotary_size // 2) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    turned = query.clone()
    rope_write_kv(fused, 1, turned, key, value, positions, cos_sin, interleaved, slots, PLAIN, small_tiles)
    rope(query, key, positions, cos_sin, interleaved)
    write_kv(apart, 1, key, value, slots, PLAIN, INTERPRETER)
    # A product and a sum may be rounded once or twice: a last bit of what is rotated, and a step of what is stored.
    torch.testing.assert_close(turned, query, rtol=2 * torch.finfo(activation).eps, atol=1e-6)
    check_alike(read(fused, 1), read(apart, 1), slots[slots >= 0])


def check_alike(fused: Stored, apart: Stored, slots: Tensor) -> None:
    for one, other, scale, kept in (
        (fused.key, apart.key, fused.key_scale, apart.key_scale),
        (fused.value, apart.value, fused.value_scale, apart.value_scale),
    ):
        step = 0.15 if one.element_size() == 1 else 2 * torch.finfo(one.dtype).eps
        if scale is not None and kept is not None:
            torch.testing.assert_close(scale[slots], kept[slots], rtol=1e-3, atol=0)
            torch.testing.assert_close(one[slots], other[slots], rtol=0, atol=1)
        else:
            torch.testing.assert_close(one[slots].float(), other[slots].float(), rtol=step, atol=1e-6)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_exported_blocks_come_back_bit_by_bit(dtype: str) -> None:
    pool = filled(make_spec(dtype))
    before = pool.memory.clone()
    saved = torch.empty(3, bytes_per_block(pool.spec), dtype=torch.uint8)
    export_blocks(pool, [4, 0, 2], saved)
    import_blocks(pool, [1, 4, 0], saved)
    expected = before.clone()
    expected[:, [1, 4, 0]] = before[:, [4, 0, 2]]
    assert torch.equal(pool.memory, expected)


@pytest.mark.parametrize("pairs", ([], [(0, 1)], [(0, 1), (1, 2), (2, 0)], [(0, 4), (1, 0), (4, 1), (3, 3)]), ids=str)
def test_blocks_are_copied_one_after_the_other(small_tiles: Configuration, pairs: list[tuple[int, int]]) -> None:
    pool = filled(make_spec("int8"))
    expected = pool.memory.clone()
    for source, target in pairs:
        expected[:, target] = expected[:, source]
    copy_blocks(pool, pairs, small_tiles)
    assert torch.equal(pool.memory, expected)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_copies_of_a_launch_do_not_depend_on_their_order(pairs: list[tuple[int, int]]) -> None:
    one_by_one, by_launch = list(range(6)), list(range(6))
    for source, target in pairs:
        one_by_one[target] = one_by_one[source]
    for launch in independent_runs(pairs):
        for source, target in reversed(launch):
            by_launch[target] = by_launch[source]
        assert not {source for source, _ in launch} & {target for _, target in launch}
    assert by_launch == one_by_one


@pytest.mark.parametrize(
    ("dtype", "changes", "named"),
    (("float64", {}, "float64"), ("float32", {"block_size": 24}, "24"), ("float32", {"head_size": 512}, "512")),
)
def test_what_kernels_do_not_know_is_refused(dtype: str, changes: dict[str, int], named: str) -> None:
    with pytest.raises(UnsupportedFeature, match=named):
        allocate_kv(make_spec(dtype, **changes), 1, CPU)


@pytest.mark.parametrize("num_blocks", (2**50, 2**60))
def test_a_pool_beyond_all_memory_is_refused_with_figures(num_blocks: int) -> None:
    with pytest.raises(OutOfMemory, match=str(num_blocks)):
        allocate_kv(make_spec(), num_blocks, CPU)


def test_fixed_scales_are_refused_where_there_are_none() -> None:
    pool = filled(make_spec("int8"))
    key, value = random_tokens(pool.spec, 1)
    params = AttentionParams(scale=1.0, k_scale=torch.tensor(2.0))
    with pytest.raises(UnsupportedFeature, match="k_scale"):
        write_kv(pool, 0, key, value, torch.tensor([0]), params, INTERPRETER)


@pytest.mark.parametrize("architecture", CONFIGURATIONS)
def test_every_architecture_has_tiles_for_every_head(architecture: str) -> None:
    configuration = configuration_of(architecture)
    assert set(configuration.decode) == set(configuration.prefill) == set(HEAD_CLASSES)


def test_an_unknown_architecture_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedFeature, match=r"sm20.*sm90"):
        configuration_of("sm20")


def test_the_package_and_its_tables_need_no_triton() -> None:
    blocked = (
        "import sys; sys.modules['triton'] = None; import pageport_triton.compile_case, pageport_triton.configurations"
    )
    subprocess.run([sys.executable, "-c", blocked], check=True, env={"PYTHONPATH": ":".join(sys.path)})
