"""Paged attention, interpreted: against the float64 oracle, with NaN wherever no query may look."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec, Memory
from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device
from pageport.engine.step_buffers import NO_MIRROR
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.attention_verdict import check_case
from pageport.testing.conformance.context import Context
from pageport_cpu.plugin import CpuBackend
from pageport_triton.configurations import INTERPRETER, Configuration, DecodeTile, PrefillTile
from pageport_triton.decode_attention import decode_attention, num_splits
from pageport_triton.kv_pool import BLOCK_SIZES, KV_DTYPES, TritonKVPool, allocate_kv, bytes_per_block, free_kv
from pageport_triton.prefill_attention import prefill_attention
from pageport_triton.write_kv import write_kv

# The interpreter computes with numpy, which warns where kernels mean to divide by zero or to meet NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


class KernelDevice(Device):
    """KV pool and attention by kernels."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            compute_dtypes=("float32", "bfloat16", "float16"),
            kv_dtypes=KV_DTYPES,
            block_sizes=BLOCK_SIZES,
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
        )

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(2**30, 2**30, 0)

    def bytes_per_block(self, spec: KVSpec) -> int:
        return bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> TritonKVPool:
        return allocate_kv(spec, num_blocks, self.torch_device)

    def free_kv(self, pool: TritonKVPool) -> None:
        free_kv(pool)

    def write_kv(
        self, pool: TritonKVPool, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        write_kv(pool, layer, key, value, slot_mapping, params, INTERPRETER)

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> None:
        return None

    def decode_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        decode_attention(pool, layer, query, params, batch, out, self._configuration)

    def prefill_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        prefill_attention(pool, layer, query, params, batch, out, self._configuration)


@pytest.fixture
def context(small_tiles: Configuration) -> Iterator[Context]:
    context = Context(CpuBackend)
    context._device = KernelDevice(small_tiles)
    yield context
    context.close()


# Decodes in one tile and in several splits, prompts, chunks behind a cached prefix, padding of both kinds.
ROWS = (Row(1), Row(40), Row(0), Row(5, 5), Row(29, 12), Row(0, 2))
DECODES, PREFILLS = ROWS[:3], ROWS[3:]
# Around the edges of blocks and tiles.
MANY_ROWS = (
    *(Row(1), Row(15), Row(16), Row(17), Row(64), Row(65), Row(150), Row(0)),
    *(Row(9, 9), Row(129, 66), Row(67, 3), Row(0, 2), Row(48, 17)),
)
USUAL = AttentionCase(rows=ROWS, compute_dtype="float32", kv_dtype="float32", block_size=16, head_size=32)
SLIDING = {"sliding_window": 21, "kind": "sliding"}
ALL = {**SLIDING, "softcap": 6.0, "has_sinks": True, "has_alibi": True}
ONE_GROUP = {"num_heads": 3, "num_kv_heads": 1}
VARIANTS = {
    "plain": {},
    "not causal": {"causal": False},
    "window": SLIDING,
    "wide window in all blocks": {"sliding_window": 70},
    "softcap": {"softcap": 6.0},
    "sinks": {"has_sinks": True},
    "alibi": {"has_alibi": True},
    "all": ALL,
}
SHAPES = (  # heads, KV heads, head size, value head size, block size
    (1, 1, 16, 16, 16),
    (6, 2, 64, 64, 32),
    (4, 4, 80, 80, 16),
    (14, 2, 96, 48, 64),
    (20, 1, 128, 128, 128),
    (8, 2, 192, 128, 256),
    (70, 1, 64, 64, 16),
    (2, 1, 256, 256, 16),
)


@pytest.mark.parametrize(
    ("rows", "changes"),
    (
        (ROWS, {}),
        (ROWS, ONE_GROUP | ALL),
        (DECODES, ONE_GROUP | {"kv_dtype": "int8"}),
        (PREFILLS, ONE_GROUP | {"kv_dtype": "int8", "head_size": 80}),
        (ROWS, ONE_GROUP | {"compute_dtype": "bfloat16", "kv_dtype": "float8_e4m3fn", "has_scales": True}),
    ),
    ids=("plain", "all variants", "int8 decodes", "int8 prefills", "8-bit floats with scales"),
)
def test_triton_attention_is_that_of_the_oracle(
    context: Context, rows: tuple[Row, ...], changes: dict[str, object]
) -> None:
    check_case(context, replace(USUAL, rows=rows, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_dtype", ("float32", pytest.param("int8", marks=pytest.mark.full)))
def test_features_of_a_head_may_come_in_chunks(small_tiles: Configuration, kv_dtype: str) -> None:
    chunked = replace(
        small_tiles,
        decode=dict.fromkeys(small_tiles.decode, DecodeTile(16, 1, 1, 32)),
        prefill=dict.fromkeys(small_tiles.prefill, PrefillTile(16, 16, 1, 1, 32)),
    )
    context = Context(CpuBackend)
    context._device = KernelDevice(chunked)
    check_case(context, replace(USUAL, rows=(Row(20), Row(5, 5)), head_size=80, kv_dtype=kv_dtype, **ONE_GROUP))


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_variants_meet_every_stored_dtype(context: Context, kv_dtype: str, variant: str) -> None:
    check_case(context, replace(USUAL, rows=MANY_ROWS, kv_dtype=kv_dtype, **VARIANTS[variant]))  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("compute_dtype", ("bfloat16", "float16"))
def test_queries_may_be_narrow(context: Context, compute_dtype: str, kv_dtype: str) -> None:
    check_case(context, replace(USUAL, compute_dtype=compute_dtype, kv_dtype=kv_dtype))


@pytest.mark.full
@pytest.mark.parametrize("kv_dtype", ("float32", "float8_e4m3fn", "int8"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_and_blocks_have_many_sizes(
    context: Context, shape: tuple[int, int, int, int, int], kv_dtype: str
) -> None:
    names = ("num_heads", "num_kv_heads", "head_size", "value_head_size", "block_size")
    check_case(context, replace(USUAL, kv_dtype=kv_dtype, **dict(zip(names, shape, strict=True))))  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiles_may_be_larger_than_requests(variant: str) -> None:
    context = Context(CpuBackend)
    context._device = KernelDevice(INTERPRETER)
    check_case(context, replace(USUAL, rows=MANY_ROWS, **VARIANTS[variant]))  # type: ignore[arg-type]


@pytest.mark.full
def test_programs_find_their_request_among_hundreds(context: Context) -> None:
    rows = tuple(Row(1 + index % 20, 1 + index % 3 if index % 20 > 2 else 1) for index in range(300))
    check_case(context, replace(USUAL, rows=rows, has_decodes=False, num_heads=1, num_kv_heads=1, head_size=16))


def filled_pool(spec: KVSpec, num_blocks: int) -> TritonKVPool:
    pool = allocate_kv(spec, num_blocks, torch.device("cpu"))
    count = num_blocks * spec.block_size
    key = torch.randn(count, spec.num_kv_heads, spec.head_size)
    value = torch.randn(count, spec.num_kv_heads, spec.value_head_size)
    write_kv(pool, 0, key, value, torch.arange(count), AttentionParams(scale=1.0), INTERPRETER)
    return pool


def decode_batch(lengths: list[int], table: Tensor, max_seq_len: int) -> AttentionBatch:
    """Return a step as a graph is captured for it: nothing on the host but bounds."""
    count = len(lengths)
    return AttentionBatch(
        num_requests=count,
        num_tokens=count,
        max_query_len=1,
        max_seq_len=max_seq_len,
        num_decodes=count,
        query_start_loc=torch.arange(count + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        block_table=table,
        slot_mapping=torch.full((count,), -1),
        host=NO_MIRROR,
    )


@pytest.mark.parametrize("dtype", ("float8_e4m3fn", "float8_e5m2"))
def test_every_eight_bit_float_is_read_as_what_it_is(small_tiles: Configuration, dtype: str) -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_size=16, value_head_size=256, block_size=16, dtype=dtype)
    pool = allocate_kv(spec, 1, torch.device("cpu"))
    pool.memory.zero_()
    every_byte = torch.arange(256, dtype=torch.uint8)
    pool.layers[0].value[:256] = every_byte
    out = torch.empty(1, 1, 256)
    batch = decode_batch([1], torch.zeros(1, 1, dtype=torch.int32), 1)
    decode_attention(pool, 0, torch.randn(1, 1, 16), AttentionParams(scale=1.0), batch, out, small_tiles)
    expected = every_byte.view(getattr(torch, dtype)).float()
    torch.testing.assert_close(out[0, 0], expected, rtol=0, atol=0, equal_nan=True)


def test_decode_attention_reads_lengths_from_tensors_alone(small_tiles: Configuration) -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_size=16, value_head_size=16, block_size=16, dtype="float32")
    pool = filled_pool(spec, 6)
    query, params = torch.randn(3, 2, 16), AttentionParams(scale=0.3)
    table = torch.tensor([[0, 1, 2, -1], [3, -1, -1, -1], [4, 5, -1, -1]], dtype=torch.int32)
    exact, bounded = torch.full((2, 3, 2, 16), torch.nan)
    decode_attention(pool, 0, query, params, decode_batch([40, 3, 20], table, 40), exact, small_tiles)
    captured = decode_batch([7, 7, 7], table, 2**17)
    captured.seq_lens.copy_(torch.tensor([40, 3, 20]))
    decode_attention(pool, 0, query, params, captured, bounded, small_tiles)
    torch.testing.assert_close(bounded, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_decodes", (2, 1, 0))
def test_tokens_behind_the_last_request_are_padding(small_tiles: Configuration, num_decodes: int) -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_size=16, value_head_size=16, block_size=16, dtype="float32")
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    exact = decode_batch([5, 9], table, 16)
    mirror = AttentionMirror(
        query_start_loc=exact.query_start_loc.numpy(), seq_lens=exact.seq_lens.numpy(), block_table=table.numpy()
    )
    padded = replace(exact, num_tokens=5, num_decodes=num_decodes, host=mirror)
    query, out = torch.full((5, 2, 16), torch.nan), torch.full((5, 2, 16), torch.nan)
    query[:2] = torch.randn(2, 2, 16)
    device = KernelDevice(small_tiles)
    device.attention(filled_pool(spec, 2), 0, query, AttentionParams(scale=0.3), padded, out)
    assert out[:2].isfinite().all() and out[:2].count_nonzero() == 64
    assert not out[2:].any()


@pytest.mark.parametrize(
    ("max_length", "window", "programs", "expected"),
    ((16, None, 1, 1), (17, None, 1, 2), (160, None, 1, 10), (160, None, 20, 2), (160, None, 32, 1), (160, 20, 1, 3)),
)
def test_splits_fill_the_device_and_no_more(
    small_tiles: Configuration, max_length: int, window: int | None, programs: int, expected: int
) -> None:
    tile = next(iter(small_tiles.decode.values()))
    assert num_splits(max_length, window, programs, tile, small_tiles) == expected
