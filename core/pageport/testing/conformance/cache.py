"""``Cache``: a pool of the device under test, and what a check needs to fill it and to look into it."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import AttentionParams, KVSpec
from pageport.testing.conformance.context import Context

# Scores of a key with itself and with any other then differ by at least 128: the softmax picks one value exactly.
LOOKUP_SCALE = 64.0
# So many bits of a key number its token.
CODE_BITS = 8
# tokens: more than any check writes
WIDE_WINDOW = 4096


def sample_spec(capabilities: Capabilities, **changes: Any) -> KVSpec:
    """Return a small cache group that the capabilities cover, with ``changes``."""
    head_size = min(capabilities.head_sizes, default=64)
    settings: dict[str, Any] = {
        "num_layers": 3,
        "num_kv_heads": 2,
        "head_size": head_size,
        "value_head_size": head_size,
        "block_size": middle(capabilities.block_sizes),
        "dtype": capabilities.kv_dtypes[0],
        "kind": capabilities.kv_kinds[0],
    }
    return KVSpec(**(settings | changes))


def middle(sizes: Sequence[int]) -> int:
    """Return the size nearest to 16 tokens: large ones make slow checks, and a size of 1 hides edges."""
    return min(sizes, key=lambda size: abs(size - 16))


class Cache:
    """``pool`` is the device's own; blocks are compared by what ``export_blocks`` gives."""

    def __init__(self, context: Context, spec: KVSpec, num_blocks: int) -> None:
        self.device = context.device
        self.spec = spec
        self.num_blocks = num_blocks
        capabilities = context.capabilities
        self.params = attention_params(spec)
        self.compute_dtype: torch.dtype = getattr(
            torch, spec.dtype if spec.dtype in capabilities.compute_dtypes else capabilities.preferred_dtype
        )
        self._token_buckets = capabilities.token_buckets if capabilities.static_shapes else ()
        self._request_buckets = capabilities.request_buckets if capabilities.static_shapes else ()
        self.pool = self.device.allocate_kv(spec, num_blocks)

    @property
    def max_tokens(self) -> int:
        """Return how many tokens one step may have and ``random_tokens`` can tell apart."""
        codes = 1 << CODE_BITS
        return min(codes, self._token_buckets[-1]) if self._token_buckets else codes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.device.free_kv(self.pool)

    def random_tokens(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return keys and values of ``count`` tokens on the device, no two keys of a head alike.

        A head's keys are as large as each other, and differ in size from those of another call.
        """
        spec = self.spec
        key = torch.randint(0, 2, (count, spec.num_kv_heads, spec.head_size), generator=generator) * 2 - 1
        code = torch.arange(count)[:, None] >> torch.arange(min(CODE_BITS, spec.head_size)) & 1
        key[:, :, : code.shape[1]] = (code * 2 - 1)[:, None]
        key <<= torch.randint(0, 5, (1, spec.num_kv_heads, 1), generator=generator)
        value = torch.randn(count, spec.num_kv_heads, spec.value_head_size, generator=generator)
        return tuple(tensor.to(self.device.torch_device, self.compute_dtype) for tensor in (key, value))  # type: ignore[return-value]

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Sequence[int]) -> None:
        """Write tokens, in steps of at most the largest bucket where shapes are static."""
        step = self._token_buckets[-1] if self._token_buckets else max(1, len(slots))
        for start in range(0, len(slots), step):
            part = slice(start, start + step)
            wanted = list(slots[part])
            padding = bucket(len(wanted), self._token_buckets) - len(wanted)
            slot_mapping = torch.tensor(wanted + [-1] * padding, device=self.device.torch_device)
            self.device.write_kv(
                self.pool, layer, _padded(key[part], padding), _padded(value[part], padding), slot_mapping, self.params
            )

    def fill(self, generator: torch.Generator, blocks: Sequence[int] | None = None) -> None:
        """Write random tokens to every slot of ``blocks`` (default: all) in every layer."""
        size = self.spec.block_size
        slots = [block * size + offset for block in blocks or range(self.num_blocks) for offset in range(size)]
        for layer in range(self.spec.num_layers):
            self.write(layer, *self.random_tokens(len(slots), generator), slots)

    def export(self, block_ids: Sequence[int] | None = None) -> Tensor:
        """Return ``uint8 [blocks, bytes_per_block]`` of ``block_ids`` (default: all)."""
        ids = list(range(self.num_blocks)) if block_ids is None else list(block_ids)
        self.device.synchronize()
        out = torch.empty(len(ids), self.device.bytes_per_block(self.spec), dtype=torch.uint8)
        self.device.export_blocks(self.pool, ids, out)
        self.device.synchronize()
        return out

    def look_up(self, layer: int, key: Tensor, block_ids: Sequence[int]) -> Tensor:
        """Return, for each key of one request's tokens, the value that attention finds under it.

        The tokens are those at the slots of ``block_ids`` from the first on; each query is a key itself.
        """
        batch = self._one_prefill(len(key), block_ids)
        batch.plan = self.device.plan(self.spec, batch)
        padding = batch.num_tokens - len(key)
        shape = (batch.num_tokens, self.spec.num_kv_heads, self.spec.value_head_size)
        out = torch.full(shape, torch.nan, dtype=key.dtype, device=key.device)
        self.device.attention(self.pool, layer, _padded(key, padding), self.params, batch, out)
        self.device.synchronize()
        return out[: len(key)]

    def _one_prefill(self, count: int, block_ids: Sequence[int]) -> AttentionBatch:
        """Describe a step with one request of ``count`` new tokens, padded where shapes are static."""
        num_requests = bucket(1, self._request_buckets)
        num_tokens = bucket(count, self._token_buckets)
        table = np.zeros((num_requests, len(block_ids)), dtype=np.int32)
        table[0] = block_ids
        starts = np.full(num_requests + 1, num_tokens, dtype=np.int32)
        starts[:2] = 0, count
        lengths = np.zeros(num_requests, dtype=np.int32)
        lengths[0] = count
        size = self.spec.block_size
        slots = [block_ids[position // size] * size + position % size for position in range(count)]
        slots += [-1] * (num_tokens - count)
        device = self.device.torch_device
        return AttentionBatch(
            num_requests=num_requests,
            num_tokens=num_tokens,
            max_query_len=count,
            max_seq_len=count,
            num_decodes=0,
            query_start_loc=torch.from_numpy(starts).to(device),
            seq_lens=torch.from_numpy(lengths).to(device),
            block_table=torch.from_numpy(table).to(device),
            slot_mapping=torch.tensor(slots, device=device),
            host=AttentionMirror(query_start_loc=starts, seq_lens=lengths, block_table=table),
        )


def attention_params(spec: KVSpec) -> AttentionParams:
    """Return causal attention that looks keys up."""
    return AttentionParams(scale=LOOKUP_SCALE, sliding_window=WIDE_WINDOW if spec.kind == "sliding" else None)


def bucket(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds ``count``, or the largest one; ``count`` itself where there are none."""
    return min((size for size in buckets if size >= count), default=max(buckets, default=count))


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """Append rows that nothing may read."""
    if rows == 0:
        return tensor
    return torch.cat([tensor, tensor.new_full((rows, *tensor.shape[1:]), torch.nan)])
