"""Part: attention's time as a share of what the device can do at best, and beside torch's own on contiguous memory."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from measure import copy_bandwidth, matrix_rate, seconds
from part import Part
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device
from pageport.backend.discovery import discover, select

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 32, 8, 128, 16
PARAMS = AttentionParams(scale=HEAD_SIZE**-0.5)


class Shape(NamedTuple):
    """So many requests, each with ``context`` tokens, of which ``queries`` are this step's."""

    requests: int
    context: int
    queries: int = 1

    @property
    def label(self) -> str:
        new = "" if self.queries == 1 else f", {self.queries} of them new"
        return f"{self.requests} × {self.context} tokens{new}"


DECODES = (Shape(1, 32768), Shape(16, 8192), Shape(16, 32768), Shape(64, 4096), Shape(256, 1024), Shape(256, 2048))
PREFILLS = (Shape(1, 8192, 8192), Shape(4, 2048, 2048), Shape(8, 4096, 512), Shape(32, 256, 256))
DRY_DECODES, DRY_PREFILLS = (Shape(2, 40),), (Shape(2, 40, 40), Shape(2, 40, 8))


def main() -> None:
    with Part("time_attention") as part:
        dtype = torch.float32 if part.is_dry else torch.bfloat16
        bandwidth, rate = copy_bandwidth(part), matrix_rate(part, dtype)
        part.add("copy bandwidth", f"{bandwidth / 1e9:.0f} GB/s")
        part.add("matrix rate", f"{rate / 1e12:.1f} TFLOP/s")
        device = select(discover(), part.backend).backend().open(0, {})
        for shape in DRY_DECODES if part.is_dry else DECODES:
            part.add(f"decode, {shape.label}", decode(part, device, shape, dtype, bandwidth))
        for shape in DRY_PREFILLS if part.is_dry else PREFILLS:
            part.add(f"prefill, {shape.label}", prefill(part, device, shape, dtype, rate))
        device.close()


def decode(part: Part, device: Device, shape: Shape, dtype: torch.dtype, bandwidth: float) -> dict[str, Any]:
    """Time one layer's decode attention; the least it must read is every key and value once."""
    scene = Scene(device, shape, dtype)
    ours = seconds(part, scene.attend)
    num_bytes = 2 * shape.requests * shape.context * KV_HEADS * HEAD_SIZE * dtype.itemsize
    times = {"µs": round(ours * 1e6, 1), "of copy bandwidth": round(num_bytes / ours / bandwidth, 3)}
    return {**times, **others(part, scene, ours)}


def prefill(part: Part, device: Device, shape: Shape, dtype: torch.dtype, rate: float) -> dict[str, Any]:
    """Time one layer's prefill attention; what the mask hides need not be computed."""
    scene = Scene(device, shape, dtype)
    ours = seconds(part, scene.attend)
    seen = shape.queries * (shape.context - shape.queries) + shape.queries * (shape.queries + 1) / 2
    operations = 4 * shape.requests * seen * HEADS * HEAD_SIZE
    times = {"µs": round(ours * 1e6, 1), "of matrix rate": round(operations / ours / rate, 3)}
    return {**times, **others(part, scene, ours)}


def others(part: Part, scene: "Scene", ours: float) -> dict[str, Any]:
    """Time the same by others: above 1 means that pageport is faster."""
    found: dict[str, Any] = {}
    for name, prepare in {"torch": scene.torch_attention, "flashinfer": scene.flashinfer_attention}.items():
        try:
            found[f"{name} / pageport"] = round(seconds(part, prepare()) / ours, 3)
        except ImportError:
            found[f"{name} / pageport"] = "not installed"
        except Exception as error:  # another library's failure is a result
            found[f"{name} / pageport"] = f"{type(error).__name__}: {str(error)[:120]}"
    return found


class Scene:
    """A filled cache whose blocks lie in any order, and one step's queries."""

    def __init__(self, device: Device, shape: Shape, dtype: torch.dtype) -> None:
        self._device, self._shape, where = device, shape, device.torch_device
        name = str(dtype).removeprefix("torch.")
        spec = KVSpec(
            num_layers=1,
            num_kv_heads=KV_HEADS,
            head_size=HEAD_SIZE,
            value_head_size=HEAD_SIZE,
            block_size=BLOCK,
            dtype=name,
        )
        blocks_each = -(-shape.context // BLOCK)
        self._pool = device.allocate_kv(spec, shape.requests * blocks_each)
        tokens = shape.requests * shape.context
        self.key, self.value = (torch.randn(tokens, KV_HEADS, HEAD_SIZE, device=where, dtype=dtype) for _ in range(2))
        table = np.random.default_rng(0).permutation(shape.requests * blocks_each).astype(np.int32)
        table = table.reshape(shape.requests, blocks_each)
        positions = np.arange(shape.context)
        slots = table[:, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
        device.write_kv(self._pool, 0, self.key, self.value, torch.from_numpy(slots.reshape(-1)).to(where), PARAMS)
        self._batch = _batch(shape, table, slots, where)
        self._batch.plan = device.plan(spec, self._batch)
        self.query = torch.randn(shape.requests * shape.queries, HEADS, HEAD_SIZE, device=where, dtype=dtype)
        self._out = torch.empty_like(self.query)
        self._table = torch.from_numpy(table).to(where)

    def __del__(self) -> None:
        self._device.free_kv(self._pool)

    def attend(self) -> None:
        self._device.attention(self._pool, 0, self.query, PARAMS, self._batch, self._out)

    def torch_attention(self) -> Callable[[], object]:
        """Return torch's attention over keys and values that lie contiguously, request by request."""
        requests, context, queries = self._shape
        query = self.query.view(requests, queries, HEADS, HEAD_SIZE).transpose(1, 2)
        key, value = (
            x.view(requests, context, KV_HEADS, HEAD_SIZE).transpose(1, 2).contiguous() for x in (self.key, self.value)
        )
        is_whole, mask = queries == context, None
        if not is_whole and queries > 1:
            mask = torch.ones(queries, context, dtype=torch.bool, device=query.device).tril(context - queries)
        return lambda: scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_whole, enable_gqa=True
        )

    def flashinfer_attention(self) -> Callable[[], object]:
        """Return FlashInfer's paged attention over a cache of its own."""
        import flashinfer

        requests, context, queries = self._shape
        where, dtype = self.query.device, self.query.dtype
        blocks_each = self._table.shape[1]
        cache = torch.randn(requests * blocks_each, 2, BLOCK, KV_HEADS, HEAD_SIZE, device=where, dtype=dtype)
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=where)
        starts = torch.arange(requests + 1, dtype=torch.int32, device=where)
        last = torch.full((requests,), (context - 1) % BLOCK + 1, dtype=torch.int32, device=where)
        pages = (starts * blocks_each, self._table.flatten(), last)
        if queries == 1:
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
            wrapper.plan(*pages, HEADS, KV_HEADS, HEAD_SIZE, BLOCK, q_data_type=dtype, kv_data_type=dtype)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            wrapper.plan(starts * queries, *pages, HEADS, KV_HEADS, HEAD_SIZE, BLOCK, causal=True, q_data_type=dtype)
        return lambda: wrapper.run(self.query, cache)


def _batch(shape: Shape, table: Any, slots: Any, where: torch.device) -> AttentionBatch:
    starts = np.arange(shape.requests + 1, dtype=np.int32) * shape.queries
    lengths = np.full(shape.requests, shape.context, np.int32)

    def there(values: Any) -> Tensor:
        return torch.from_numpy(values).to(where)

    return AttentionBatch(
        num_requests=shape.requests,
        num_tokens=shape.requests * shape.queries,
        max_query_len=shape.queries,
        max_seq_len=shape.context,
        num_decodes=shape.requests if shape.queries == 1 else 0,
        query_start_loc=there(starts),
        seq_lens=there(lengths),
        block_table=there(table),
        slot_mapping=there(np.ascontiguousarray(slots[:, -shape.queries :]).reshape(-1)),
        host=AttentionMirror(query_start_loc=starts, seq_lens=lengths, block_table=table),
    )


if __name__ == "__main__":
    main()
