"""``XpuKernelsDevice``: an Intel GPU whose attention is that of the package vllm-xpu-kernels.

Called as the docstring of ``flash_attn_varlen_func`` in version 0.1.16.2 says (read in November 2026). Its kernels are
written for caches [blocks, block_size, kv_heads, head_size] and tested with blocks of 64 tokens; a shape that they
were not compiled for is computed by a reference in torch, with a warning. Softcap is left out, as not all of them have
it, and sinks, which are not described.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities
from pageport.backend.batch import AttentionBatch
from pageport_triton.accelerator import Accelerator
from pageport_triton.attention_option import Library
from pageport_triton.library_device import LibraryDevice, Limits, window_bounds
from pageport_triton.paged_step import PagedRows
from pageport_xpu.token_major_ops import TokenMajorOps

XPU_KERNELS = Library(
    "vllm-xpu-kernels",
    distribution="vllm-xpu-kernels",
    module="vllm_xpu_kernels",
    floor=(0, 1, 16),
    functions=("flash_attn_varlen_func",),
)
LIMITS = Limits(
    XPU_KERNELS.name,
    head_sizes=(64, 128, 192, 256),
    block_sizes=(64,),
    variants=("sliding_window",),
    most_heads_per_kv_head=16,
)


class XpuKernelsDevice(LibraryDevice, TokenMajorOps):
    """One Intel GPU."""

    def __init__(
        self, accelerator: Accelerator, torch_device: torch.device, architecture: str, xpu_kernels: Any
    ) -> None:
        super().__init__(accelerator, torch_device, architecture, "xccl", LIMITS)
        self._xpu_kernels = xpu_kernels
        declared = super().capabilities
        features = {name: number for name, number in declared.features.items() if name != "op:rope_write_kv"}
        self._declared = replace(declared, features=features)

    @property
    def capabilities(self) -> Capabilities:
        return self._declared

    def memories(self, pool: Any) -> Sequence[Tensor]:
        owners: list[Tensor] = pool.tensors
        return owners

    def decode_attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        self._attend(batch.plan.decodes, pool, layer, query, params, out)

    def prefill_attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        self._attend(batch.plan.prefills, pool, layer, query, params, out)

    def _attend(
        self, rows: PagedRows | None, pool: Any, layer: int, query: Tensor, params: AttentionParams, out: Tensor
    ) -> None:
        if rows is None:
            return
        result = self._xpu_kernels.flash_attn_varlen_func(
            self.query(query, rows, pool.spec),
            pool.key[layer],
            pool.value[layer],
            max_seqlen_q=rows.max_queries,
            cu_seqlens_q=rows.query_starts,
            max_seqlen_k=rows.max_length,
            seqused_k=rows.lengths,
            softmax_scale=float(params.scale),
            causal=params.causal,
            window_size=list(window_bounds(params)),
            block_table=rows.block_table,
            out=self.place(out, rows, pool.spec),
        )
        self.finish(out, rows, result)
