"""``FlashInferDevice``: an NVIDIA GPU whose attention is FlashInfer's.

Called as version 0.7.4 documents it (docs.flashinfer.ai/api/attention.html, read in November 2026); 0.6.0 takes the
same keywords. Its layout "HND" of a paged cache, one tensor [pages, 2, kv_heads, page_size, head_size], is that of one
layer of the Triton kernels' pool.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport_triton.accelerator import Accelerator
from pageport_triton.attention_option import Library
from pageport_triton.kv_pool import BLOCK_SIZES, TritonKVPool
from pageport_triton.library_device import LibraryDevice, Limits, layer_blocks, window_bounds
from pageport_triton.paged_step import PagedRows, PagedStep, paged_step

FLASHINFER = Library(
    "flashinfer",
    distribution="flashinfer-python",
    module="flashinfer",
    floor=(0, 6),
    functions=("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"),
)
# Head sizes that all of its kernels are made for. Its alibi has slopes of its own, its sinks only some kernels.
LIMITS = Limits(
    FLASHINFER.name, head_sizes=(64, 128, 256), block_sizes=BLOCK_SIZES, variants=("sliding_window", "softcap")
)
# What its documentation recommends for partial results.
WORKSPACE_BYTES = 128 << 20
HOST = torch.device("cpu")


class _Layers(NamedTuple):
    """Layers that one plan serves: of one pool, with one formula."""

    pool_id: int
    num_heads: int
    scale: float
    causal: bool
    sliding_window: int | None
    softcap: float | None


@dataclass(slots=True)
class _Planned:
    """One of FlashInfer's wrappers, and the rows that it was planned for last."""

    wrapper: Any
    rows: PagedRows | None = None


class FlashInferDevice(LibraryDevice):
    """One NVIDIA GPU; a step is planned once for all layers with the same formula."""

    def __init__(
        self, accelerator: Accelerator, torch_device: torch.device, architecture: str, flashinfer: Any
    ) -> None:
        super().__init__(accelerator, torch_device, architecture, "nccl", LIMITS)
        self._flashinfer = flashinfer
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=torch_device)
        self._decodes: dict[_Layers, _Planned] = {}
        self._prefills: dict[_Layers, _Planned] = {}

    def free_kv(self, pool: TritonKVPool) -> None:
        for planned in (self._decodes, self._prefills):
            for layers in [layers for layers in planned if layers.pool_id == id(pool)]:
                del planned[layers]
        super().free_kv(pool)

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> PagedStep:
        return paged_step(batch, spec.block_size, HOST)

    def decode_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        rows: PagedRows | None = batch.plan.decodes
        if rows is None:
            return
        layers = _layers(pool, query.shape[1], params)
        planned = self._decodes.get(layers)
        if planned is None:
            # Its kernels for matrix instructions take any number of query heads for each KV head.
            kind = self._flashinfer.BatchDecodeWithPagedKVCacheWrapper
            planned = self._decodes[layers] = _Planned(kind(self._workspace, "HND", use_tensor_cores=True))
        if planned.rows is not rows:
            spec = pool.spec
            planned.wrapper.plan(
                **_pages(rows, spec.block_size, ""),
                num_qo_heads=layers.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_size,
                page_size=spec.block_size,
                **_formula(spec, params),
            )
            planned.rows = rows
        self._run(planned.wrapper, rows, pool, layer, query, out)

    def prefill_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        rows: PagedRows | None = batch.plan.prefills
        if rows is None:
            return
        layers = _layers(pool, query.shape[1], params)
        planned = self._prefills.get(layers)
        if planned is None:
            kind = self._flashinfer.BatchPrefillWithPagedKVCacheWrapper
            planned = self._prefills[layers] = _Planned(kind(self._workspace, "HND"))
        if planned.rows is not rows:
            spec = pool.spec
            planned.wrapper.plan(
                qo_indptr=rows.query_starts,
                **_pages(rows, spec.block_size, "paged_kv_"),
                num_qo_heads=layers.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim_qk=spec.head_size,
                page_size=spec.block_size,
                causal=params.causal,
                **_formula(spec, params),
            )
            planned.rows = rows
        self._run(planned.wrapper, rows, pool, layer, query, out)

    def _run(self, wrapper: Any, rows: PagedRows, pool: TritonKVPool, layer: int, query: Tensor, out: Tensor) -> None:
        given, place = self.query(query, rows, pool.spec), self.place(out, rows, pool.spec)
        self.finish(out, rows, wrapper.run(given, layer_blocks(pool, layer), out=place))


def _layers(pool: TritonKVPool, num_heads: int, params: AttentionParams) -> _Layers:
    return _Layers(id(pool), num_heads, float(params.scale), params.causal, params.sliding_window, params.softcap)


def _pages(rows: PagedRows, block_size: int, prefix: str) -> dict[str, Tensor]:
    """Return the pages of all rows one after the other, where each row's begin, and how much its last one holds."""
    lengths, table = rows.lengths.numpy(), rows.block_table.numpy()
    num_pages = -(-lengths // block_size)
    pages = {
        "indptr": np.concatenate(([0], np.cumsum(num_pages))),
        "indices": table[np.arange(table.shape[1]) < num_pages[:, None]],
        "last_page_len": lengths - (num_pages - 1) * block_size,
    }
    return {prefix + name: torch.from_numpy(numbers.astype(np.int32)) for name, numbers in pages.items()}


def _formula(spec: KVSpec, params: AttentionParams) -> dict[str, Any]:
    dtype = getattr(torch, spec.dtype)
    return {
        "sm_scale": float(params.scale),
        "window_left": window_bounds(params)[0],
        "logits_soft_cap": params.softcap,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }
