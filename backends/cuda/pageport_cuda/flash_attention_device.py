"""``FlashAttentionDevice``: an NVIDIA GPU whose attention is that of the package flash-attn.

Called as the docstrings of flash-attn 2.8's ``flash_attn_interface`` say (read in November 2026): a paged cache is
[blocks, block_size, kv_heads, head_size], of which only the last axis need be dense, so that the Triton kernels' pool
is one, seen the other way round; blocks hold 256 tokens.
"""

from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams
from pageport.backend.batch import AttentionBatch
from pageport_triton.accelerator import Accelerator
from pageport_triton.attention_option import Library
from pageport_triton.kv_pool import TritonKVPool
from pageport_triton.library_device import LibraryDevice, Limits, layer_blocks, window_bounds
from pageport_triton.paged_step import PagedRows

FLASH_ATTENTION = Library(
    "flash-attn",
    distribution="flash-attn",
    module="flash_attn",
    floor=(2, 8),
    functions=("flash_attn_with_kvcache", "flash_attn_varlen_func"),
)
LIMITS = Limits(
    FLASH_ATTENTION.name,
    head_sizes=(32, 64, 80, 96, 128, 192, 256),
    block_sizes=(256,),
    variants=("sliding_window", "softcap"),
)


class FlashAttentionDevice(LibraryDevice):
    """One NVIDIA GPU."""

    def __init__(
        self, accelerator: Accelerator, torch_device: torch.device, architecture: str, flash_attn: Any
    ) -> None:
        super().__init__(accelerator, torch_device, architecture, "nccl", LIMITS)
        self._flash_attn = flash_attn

    def decode_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        rows: PagedRows | None = batch.plan.decodes
        if rows is None:
            return
        key, value = _keys_and_values(pool, layer)
        result = self._flash_attn.flash_attn_with_kvcache(
            self.query(query, rows, pool.spec).unsqueeze(1),
            key,
            value,
            cache_seqlens=rows.lengths,
            block_table=rows.block_table,
            **_formula(params),
        )
        self.finish(out, rows, result.squeeze(1))

    def prefill_attention(
        self, pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        rows: PagedRows | None = batch.plan.prefills
        if rows is None:
            return
        key, value = _keys_and_values(pool, layer)
        result = self._flash_attn.flash_attn_varlen_func(
            self.query(query, rows, pool.spec),
            key,
            value,
            cu_seqlens_q=rows.query_starts,
            cu_seqlens_k=rows.key_starts,
            max_seqlen_q=rows.max_queries,
            max_seqlen_k=rows.max_length,
            block_table=rows.block_table,
            **_formula(params),
        )
        self.finish(out, rows, result)


def _keys_and_values(pool: TritonKVPool, layer: int) -> tuple[Tensor, Tensor]:
    key, value = layer_blocks(pool, layer).transpose(2, 3).unbind(1)
    return key, value


def _formula(params: AttentionParams) -> dict[str, Any]:
    return {
        "softmax_scale": float(params.scale),
        "causal": params.causal,
        "window_size": window_bounds(params),
        "softcap": params.softcap or 0.0,
    }
