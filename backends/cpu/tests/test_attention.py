"""Attention of the native device: against the float64 oracle, and bit by bit against itself in other company."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.engine.step_buffers import NO_MIRROR
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.attention_verdict import check_case
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.oracle import DenseRequest, Formula, as_floats, attend
from pageport_cpu.attention import attention
from pageport_cpu.device import CpuDevice
from pageport_cpu.kv_pool import (
    BLOCK_SIZES,
    FEATURES,
    KV_DTYPES,
    CpuKVPool,
    allocate_kv,
    bytes_per_block,
    free_kv,
    layer_part,
    write_kv,
)
from pageport_cpu.library import Library
from pageport_cpu.plugin import CpuBackend


class KernelDevice(CpuDevice):
    """KV pool and attention by kernels."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library
        self._capabilities = Capabilities(
            compute_dtypes=("float32", "bfloat16", "float16"),
            kv_dtypes=KV_DTYPES,
            features=FEATURES,
            block_sizes=BLOCK_SIZES,
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
        )

    def bytes_per_block(self, spec: KVSpec) -> int:
        return bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> CpuKVPool:
        return allocate_kv(spec, num_blocks)

    def free_kv(self, pool: CpuKVPool) -> None:
        free_kv(pool)

    def write_kv(
        self, pool: CpuKVPool, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        write_kv(self._library, pool, layer, key, value, slot_mapping, params)

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> None:
        return None

    def attention(
        self, pool: CpuKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        attention(self._library, pool, layer, query, params, batch, out)


@pytest.fixture
def context(library: Library) -> Iterator[Context]:
    context = Context(CpuBackend)
    context._device = KernelDevice(library)
    yield context
    context.close()


# --- against the oracle: what no query may see is NaN, views are strided, blocks permuted -----------------------------

# Around the edges of blocks and of tiles of 64 keys; padding; prompts, and chunks behind a cached prefix.
ROWS = (
    *(Row(1), Row(15), Row(16), Row(17), Row(64), Row(65), Row(150), Row(0)),
    *(Row(9, 9), Row(129, 66), Row(67, 3), Row(0, 2), Row(48, 17)),
)
USUAL = AttentionCase(rows=ROWS, compute_dtype="float32", kv_dtype="float32", block_size=16, head_size=32)
SLIDING = {"sliding_window": 21, "kind": "sliding"}
VARIANTS = {
    "plain": {},
    "not causal": {"causal": False},
    "window": SLIDING,
    "wide window in all blocks": {"sliding_window": 70},
    "softcap": {"softcap": 6.0},
    "sinks": {"has_sinks": True},
    "alibi": {"has_alibi": True},
    "all": {**SLIDING, "softcap": 6.0, "has_sinks": True, "has_alibi": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_attention_is_that_of_the_oracle(context: Context, kv_dtype: str, variant: str) -> None:
    check_case(context, replace(USUAL, kv_dtype=kv_dtype, **VARIANTS[variant]))


@pytest.mark.parametrize("kv_dtype", ("float8_e4m3fn", "float8_e5m2"))
def test_fixed_scales_are_multiplied_back(context: Context, kv_dtype: str) -> None:
    check_case(context, replace(USUAL, kv_dtype=kv_dtype, has_scales=True, softcap=6.0))


@pytest.mark.parametrize("kv_dtype", ("float32", "bfloat16", "int8"))
@pytest.mark.parametrize("compute_dtype", ("bfloat16", "float16"))
def test_activations_may_be_narrow(context: Context, compute_dtype: str, kv_dtype: str) -> None:
    check_case(context, replace(USUAL, compute_dtype=compute_dtype, kv_dtype=kv_dtype))


@pytest.mark.parametrize("kv_dtype", ("float32", "float8_e4m3fn", "float8_e5m2", "int8"))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "value_head_size", "block_size"),
    (
        (1, 1, 1, 1, 16),
        (6, 2, 7, 20, 32),
        (9, 3, 64, 64, 64),
        (7, 1, 80, 40, 128),
        (5, 5, 33, 128, 16),
        (10, 1, 256, 256, 256),
        (71, 1, 16, 24, 16),
    ),
)
def test_heads_may_have_any_size_and_number(
    context: Context, heads: int, kv_heads: int, head_size: int, value_head_size: int, block_size: int, kv_dtype: str
) -> None:
    case = replace(USUAL, num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, block_size=block_size)
    check_case(context, replace(case, value_head_size=value_head_size, kv_dtype=kv_dtype, scale=head_size**-0.5))


@pytest.mark.parametrize("kv_dtype", ("float32", "int8"))
@pytest.mark.parametrize("variant", ("plain", "wide window in all blocks", "sinks"))
def test_long_contexts_are_summed_in_splits(context: Context, variant: str, kv_dtype: str) -> None:
    rows = (Row(3000), Row(512), Row(513), Row(1025), Row(1100, 3), Row(700, 200))
    check_case(context, replace(USUAL, rows=rows, kv_dtype=kv_dtype, num_kv_heads=1, **VARIANTS[variant]))


@pytest.mark.full
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_long_prompts_over_every_cache(context: Context, block_size: int, kv_dtype: str) -> None:
    rows = (Row(4097), Row(1025, 1025), Row(3000, 130))
    for variant in VARIANTS.values():
        check_case(context, replace(USUAL, rows=rows, block_size=block_size, kv_dtype=kv_dtype, **variant))


# --- bit by bit ------------------------------------------------------------------------------------------------------

HEADS, KV_HEADS, HEAD_SIZE = 6, 2, 24
GREATEST = 1200  # tokens of the longest request: three splits


class Sequences:
    """Requests with random keys and values in permuted blocks, and a query for each token."""

    def __init__(
        self,
        library: Library,
        kv_dtype: str,
        lengths: Sequence[int],
        params: AttentionParams,
        head_size: int = HEAD_SIZE,
    ) -> None:
        self.library, self.lengths, self.params = library, lengths, params
        spec = KVSpec(
            num_layers=1,
            num_kv_heads=KV_HEADS,
            head_size=head_size,
            value_head_size=head_size,
            block_size=16,
            dtype=kv_dtype,
        )
        width = -(-max(lengths) // 16)
        self.tables = torch.randperm(len(lengths) * width).view(len(lengths), width).int()
        self.pool = allocate_kv(spec, self.tables.numel())
        self.queries = [torch.randn(length, HEADS, head_size) for length in lengths]
        for request, length in enumerate(lengths):
            self.write(request, torch.randn(length, KV_HEADS, head_size), torch.randn(length, KV_HEADS, head_size), 0)

    def write(self, request: int, key: Tensor, value: Tensor, first: int) -> None:
        positions = torch.arange(first, first + len(key))
        slots = self.tables[request, positions // 16].long() * 16 + positions % 16
        write_kv(self.library, self.pool, 0, key, value, slots, self.params)

    def attend(self, parts: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Run one step of parts (request, first position, last position excluded)."""
        counts = [last - first for _, first, last in parts]
        batch = make_batch(counts, [last for _, _, last in parts], self.tables[[request for request, _, _ in parts]])
        query = torch.cat([self.queries[request][first:last] for request, first, last in parts])
        out = torch.full_like(query, torch.nan)
        attention(self.library, self.pool, 0, query, self.params, batch, out)
        return list(out.split(counts))

    def whole(self, request: int) -> Tensor:
        return self.attend([(request, 0, self.lengths[request])])[0]


def make_batch(counts: Sequence[int], lengths: Sequence[int], tables: Tensor) -> AttentionBatch:
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    return AttentionBatch(
        num_requests=len(counts),
        num_tokens=sum(counts),
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        num_decodes=0,
        query_start_loc=starts,
        seq_lens=torch.tensor(lengths).int(),
        block_table=tables,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        host=NO_MIRROR,  # the kernel reads tensors only
    )


PARAMS = {
    "plain": AttentionParams(scale=0.3),
    "all": AttentionParams(
        scale=0.3, sliding_window=600, softcap=4.0, sinks=torch.randn(HEADS), alibi=torch.rand(HEADS) / 64
    ),
}


@pytest.fixture(params=PARAMS)
def params(request: pytest.FixtureRequest) -> AttentionParams:
    return PARAMS[request.param]


@pytest.fixture(params=("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"))
def sequences(library: Library, params: AttentionParams, request: pytest.FixtureRequest) -> Sequences:
    return Sequences(library, request.param, (GREATEST, 30, 1, 500, 70), params)


def test_a_decode_equals_the_prefill_of_its_position(sequences: Sequences) -> None:
    whole = sequences.whole(0)
    for position in (0, 1, 15, 16, 63, 64, 65, 300, 511, 512, 700, 1023, 1024, GREATEST - 1):
        assert torch.equal(sequences.attend([(0, position, position + 1)])[0][0], whole[position])


@pytest.mark.parametrize("chunk", (1, 7, 65, 333))
def test_chunks_equal_the_whole_prompt(sequences: Sequences, chunk: int) -> None:
    request = 3 if chunk >= 65 else 4
    length = sequences.lengths[request]
    starts = range(0, length, chunk)
    parts = [sequences.attend([(request, start, min(length, start + chunk))])[0] for start in starts]
    assert torch.equal(torch.cat(parts), sequences.whole(request))


def test_neighbours_change_nothing(sequences: Sequences) -> None:
    parts = [(0, 1150, GREATEST), (2, 0, 1), (3, 350, 500), (0, 599, 600), (1, 3, 30), (4, 69, 70), (3, 499, 500)]
    alone = {part: sequences.attend([part])[0] for part in parts}
    for order in (parts, parts[::-1], parts * 3):
        for part, found in zip(order, sequences.attend(order), strict=True):
            assert torch.equal(found, alone[part])


def test_threads_change_nothing(sequences: Sequences) -> None:
    parts = [(0, 1000, GREATEST), (0, GREATEST - 1, GREATEST), (3, 300, 500), (1, 29, 30)]
    on_two = sequences.attend(parts)
    sequences.library.set_num_threads(1)
    on_one = sequences.attend(parts)
    sequences.library.set_num_threads(3)
    on_three = sequences.attend(parts)
    assert all(torch.equal(one, two) for one, two in zip(on_one, on_two, strict=True))
    assert all(torch.equal(one, three) for one, three in zip(on_one, on_three, strict=True))


def test_one_long_decode_is_divided_among_threads_without_a_trace(library: Library, params: AttentionParams) -> None:
    sequences = Sequences(library, "float32", (6000,), params)
    on_two = sequences.attend([(0, 5999, 6000)])[0]
    library.set_num_threads(1)
    assert torch.equal(sequences.attend([(0, 5999, 6000)])[0], on_two)


@pytest.mark.parametrize("kv_dtype", ("float8_e4m3fn", "float8_e5m2"))
def test_every_byte_is_read_as_the_number_of_its_format(library: Library, kv_dtype: str) -> None:
    spec = KVSpec(num_layers=1, num_kv_heads=1, head_size=16, value_head_size=256, block_size=16, dtype=kv_dtype)
    pool = allocate_kv(spec, 1)
    pool.memory.zero_()
    all_bytes, values = torch.arange(256, dtype=torch.uint8), layer_part(spec).values
    pool.memory[0, values : values + 256] = all_bytes
    query, out = torch.zeros(1, 1, 16), torch.empty(1, 1, 256)
    attention(library, pool, 0, query, PARAMS["plain"], make_batch([1], [1], torch.zeros(1, 1, dtype=torch.int32)), out)
    expected = all_bytes.view(getattr(torch, kv_dtype)).float()
    assert torch.equal(out.isnan(), expected.isnan().view_as(out))
    assert torch.equal(out.nan_to_num(), expected.nan_to_num().view_as(out))


@pytest.mark.parametrize("kv_dtype", ("float32", "float8_e4m3fn", "float8_e5m2", "int8"))
def test_a_nan_reaches_only_those_who_see_it(library: Library, kv_dtype: str) -> None:
    sequences = Sequences(library, kv_dtype, (200,), PARAMS["plain"])
    before = sequences.whole(0)
    key, value = torch.randn(2, 1, KV_HEADS, HEAD_SIZE)
    value[0, 1] = torch.nan
    sequences.write(0, key, value, 100)
    after = sequences.whole(0)
    first_head = HEADS // KV_HEADS
    assert torch.equal(after[:100], before[:100])
    assert after[100:, first_head:].isnan().all()
    assert after[100:, :first_head].isfinite().all()


def test_a_large_feature_of_keys_and_queries_spoils_few_scores_over_e5m2(library: Library) -> None:
    sequences = Sequences(library, "float8_e5m2", (200,), AttentionParams(scale=0.02), head_size=64)
    query, key = sequences.queries[0], torch.randn(200, KV_HEADS, 64)
    value = torch.randn(200, KV_HEADS, 64).to(torch.float8_e5m2).float()
    query[..., 5] += 10
    key[..., 5] += 30
    sequences.write(0, key, value, 0)
    exact, rounded_plainly = (
        attend(DenseRequest(query=as_floats(query), keys=as_floats(kept), values=as_floats(value)), Formula(scale=0.02))
        for kept in (key, key.to(torch.float8_e5m2).float())
    )
    lost, lost_plainly = (abs(found - exact).mean() for found in (as_floats(sequences.whole(0)), rounded_plainly))
    assert lost < 0.4 * lost_plainly


def test_padding_is_zero_whatever_lies_there(library: Library) -> None:
    sequences = Sequences(library, "float32", (40,), PARAMS["all"])
    batch = make_batch([1, 2], [40, 0], sequences.tables[[0, 0]])
    batch.num_tokens = 5  # two more than all requests have
    query = torch.full((5, HEADS, HEAD_SIZE), torch.nan)
    query[0] = sequences.queries[0][39]
    out = torch.full_like(query, torch.nan)
    attention(library, sequences.pool, 0, query, sequences.params, batch, out)
    assert out[0].isfinite().all()
    assert torch.equal(out[1:], torch.zeros(4, HEADS, HEAD_SIZE))


def test_a_recorded_call_reads_lengths_and_blocks_anew(library: Library) -> None:
    sequences = Sequences(library, "float32", (900, 30, 64), PARAMS["plain"])
    batch = make_batch([1, 1], [20, 30], sequences.tables[[0, 1]].clone())
    query, out = torch.randn(2, HEADS, HEAD_SIZE), torch.empty(2, HEADS, HEAD_SIZE)
    with library.record() as tape:
        attention(library, sequences.pool, 0, query, sequences.params, batch, out)
    batch.seq_lens.copy_(torch.tensor([64, 897]))
    batch.block_table.copy_(sequences.tables[[2, 0]])
    query.copy_(torch.stack([sequences.queries[2][63], sequences.queries[0][896]]))
    tape.replay()
    expected = sequences.attend([(2, 63, 64), (0, 896, 897)])
    assert torch.equal(out, torch.cat(expected))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_results_are_rounded_once(library: Library, dtype: torch.dtype) -> None:
    sequences = Sequences(library, "float32", (100,), PARAMS["all"])
    batch = make_batch([100], [100], sequences.tables)
    query = sequences.queries[0].to(dtype)
    exact = torch.empty(100, HEADS, HEAD_SIZE)
    attention(library, sequences.pool, 0, query.float(), sequences.params, batch, exact)
    wide = torch.full((100, HEADS, 2 * HEAD_SIZE), torch.nan, dtype=dtype)
    attention(library, sequences.pool, 0, query, sequences.params, batch, wide[..., :HEAD_SIZE])
    assert torch.equal(wide[..., :HEAD_SIZE], exact.to(dtype))
    assert wide[..., HEAD_SIZE:].isnan().all()
