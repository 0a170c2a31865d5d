"""Level 8: what share of the memory bandwidth, measured here and now, decoding reaches. Slow is no failure."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device
from pageport.backend.kv import AttentionParams, KVSpec
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context

REPEATS = 5
# A measurement lasts at least this long, so that launching and waiting do not count …
MIN_SECONDS = 0.02
# … and repeating it stops after this.
MAX_SECONDS = 1.0
# Read once from memory: more than processors cache.
WORKING_BYTES = 128 * 2**20
GIGA = 1e9
SCHEMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def checks(_context: Context) -> Iterator[Check]:
    for name, run in (
        ("decode attention", decode_attention),
        ("linear, 1 row", linear_one_row),
        ("prefill attention", prefill_attention),
    ):
        yield Check(Level.PERFORMANCE, f"performance/{name}", run)


# --- checks ----------------------------------------------------------------------------------------------------------


def decode_attention(context: Context) -> None:
    """Read many contexts with one query each."""
    device = context.device
    case = Case.for_device(device)
    token_bytes = device.bytes_per_block(case.spec) // case.spec.block_size
    length = min(1024, case.max_tokens)
    num_requests = max(1, min(WORKING_BYTES // token_bytes, case.max_tokens) // length)
    seconds = attention_seconds(context, case, num_requests, length, num_queries=1)
    context.measured = of_bandwidth(num_requests * length * token_bytes / seconds, device)


def linear_one_row(context: Context) -> None:
    """Multiply one row, as decoding alone does: every weight is read once."""
    device, dtype = context.device, context.capabilities.preferred_dtype
    torch_dtype: torch.dtype = getattr(torch, dtype)
    features = int((WORKING_BYTES / torch_dtype.itemsize) ** 0.5) // 128 * 128
    stored = torch.rand(features, features, dtype=torch.float32).to(torch_dtype)
    spec = WeightSpec(name="performance", out_features=features, in_features=features, compute_dtype=dtype)
    part = StoredTensor(scheme=SCHEMES[dtype], shape=(features, features), read=lambda: {"weight": stored})
    weight = device.prepare_weight(spec, [part])
    x = torch.ones(1, features, dtype=torch_dtype, device=device.torch_device)
    out = torch.empty_like(x)
    seconds = best_seconds(device, lambda: device.linear(weight, x, None, out))
    context.measured = of_bandwidth(device.weight_bytes(weight) / seconds, device)


def prefill_attention(context: Context) -> None:
    """Attend causally over one prompt: two products of half the square."""
    case = Case.for_device(context.device)
    length = min(1024, case.max_tokens)
    seconds = attention_seconds(context, case, 1, length, num_queries=length)
    per_pair = 2 * case.num_heads * (case.spec.head_size + case.spec.value_head_size)
    rate = length * (length + 1) / 2 * per_pair / seconds
    context.measured = f"{rate / GIGA:.1f} GFLOP/s over {length} tokens"


# --- shared ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One layer of a middle-sized model with grouped queries, in what the device prefers."""

    spec: KVSpec
    num_heads: int
    max_tokens: int  # that an eighth of the free memory holds

    @classmethod
    def for_device(cls, device: Device) -> "Case":
        capabilities = device.capabilities
        dtype, kv_dtypes = capabilities.preferred_dtype, capabilities.kv_dtypes
        head_size = min(capabilities.head_sizes or (128,), key=lambda size: abs(size - 128))
        spec = KVSpec(
            num_layers=1,
            num_kv_heads=8,
            head_size=head_size,
            value_head_size=head_size,
            block_size=min(capabilities.block_sizes, key=lambda size: abs(size - 16)),
            dtype=dtype if dtype in kv_dtypes else kv_dtypes[0],
        )
        blocks = device.memory().free // 8 // device.bytes_per_block(spec)
        return cls(spec, 32, blocks * spec.block_size)


def attention_seconds(context: Context, case: Case, num_requests: int, length: int, *, num_queries: int) -> float:
    """Time one layer over ``num_requests`` contexts of ``length`` tokens whose blocks lie in random order."""
    device, spec = context.device, case.spec
    dtype: torch.dtype = getattr(torch, context.capabilities.preferred_dtype)
    where, blocks_each = device.torch_device, -(-length // spec.block_size)
    table = context.numpy_generator().permutation(num_requests * blocks_each).reshape(num_requests, blocks_each)
    batch = uniform_batch(table.astype(np.int32), length, num_queries, where)
    pool = device.allocate_kv(spec, table.size)
    try:
        params = AttentionParams(scale=spec.head_size**-0.5)
        fill(device, pool, spec, table.size * spec.block_size, dtype, params)
        query = torch.rand(batch.num_tokens, case.num_heads, spec.head_size, dtype=dtype, device=where)
        out = torch.empty(batch.num_tokens, case.num_heads, spec.value_head_size, dtype=dtype, device=where)
        batch.plan = device.plan(spec, batch)
        return best_seconds(device, lambda: device.attention(pool, 0, query, params, batch, out))
    finally:
        device.free_kv(pool)


def fill(
    device: Device, pool: object, spec: KVSpec, num_slots: int, dtype: torch.dtype, params: AttentionParams
) -> None:
    step = 4096
    where = device.torch_device
    key = torch.rand(step, spec.num_kv_heads, spec.head_size, dtype=dtype, device=where)
    value = torch.rand(step, spec.num_kv_heads, spec.value_head_size, dtype=dtype, device=where)
    for start in range(0, num_slots, step):
        slots = torch.arange(start, min(start + step, num_slots), device=where)
        device.write_kv(pool, 0, key[: len(slots)], value[: len(slots)], slots, params)


def uniform_batch(table: np.ndarray, length: int, num_queries: int, where: torch.device) -> AttentionBatch:
    num_requests = len(table)
    starts = np.arange(num_requests + 1, dtype=np.int32) * num_queries
    host = AttentionMirror(
        query_start_loc=starts.astype(np.int32),
        seq_lens=np.full(num_requests, length, dtype=np.int32),
        block_table=table,
    )
    return AttentionBatch(
        num_requests=num_requests,
        num_tokens=num_requests * num_queries,
        max_query_len=num_queries,
        max_seq_len=length,
        num_decodes=num_requests if num_queries == 1 else 0,
        query_start_loc=torch.from_numpy(host.query_start_loc).to(where),
        seq_lens=torch.from_numpy(host.seq_lens).to(where),
        block_table=torch.from_numpy(table).to(where),
        # Nothing is written in these steps.
        slot_mapping=torch.full((num_requests * num_queries,), -1, dtype=torch.int64, device=where),
        host=host,
    )


def of_bandwidth(rate: float, device: Device) -> str:
    """Say what share of the bandwidth ``rate`` bytes a second are."""
    bandwidth = read_bandwidth(device)
    return (
        f"{rate / GIGA:.1f} GB/s, {rate / bandwidth:.0%} of the {bandwidth / GIGA:.1f} GB/s a plain read or copy gets"
    )


def read_bandwidth(device: Device) -> float:
    """Measure the most bytes a second that summing or copying a large tensor moves."""
    data = torch.ones(WORKING_BYTES // 4, dtype=torch.float32, device=device.torch_device)
    copy = torch.empty_like(data)
    total: Tensor = torch.empty((), dtype=torch.float32, device=device.torch_device)
    reading = data.nbytes / best_seconds(device, lambda: torch.sum(data, dim=0, out=total))
    copying = 2 * data.nbytes / best_seconds(device, lambda: copy.copy_(data))
    return max(reading, copying)


def best_seconds(device: Device, run: Callable[[], object]) -> float:
    """Return the seconds of one call: the best of several measurements, each of as many calls as last long enough."""

    def measure(calls: int) -> float:
        device.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        device.synchronize()
        return time.perf_counter() - start

    measure(1)  # compiles what is compiled at first use
    first = max(measure(1), 1e-7)
    calls = max(1, round(MIN_SECONDS / first))
    best = first
    deadline = time.perf_counter() + MAX_SECONDS
    for _ in range(REPEATS):
        best = min(best, measure(calls) / calls)
        if time.perf_counter() > deadline:
            break
    return best
