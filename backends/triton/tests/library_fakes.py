"""Modules with the signatures of the libraries of attention kernels, computing in plain torch what they document.

They are not the libraries: that calls fit the documented signatures, shapes, dtypes and layouts is what they show. As
the libraries' kernels, they take no number from behind a row's length.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Formula(NamedTuple):
    scale: float
    causal: bool
    left: int = -1
    right: int = -1
    softcap: float = 0.0


def attend(query: Tensor, key: Tensor, value: Tensor, formula: Formula) -> Tensor:
    """Return the attention of one row: queries are its last tokens [tokens, heads, head_size]."""
    num_queries, num_keys = query.shape[0], key.shape[0]
    group = query.shape[1] // key.shape[1]
    key, value = (part.double().repeat_interleave(group, dim=1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * formula.scale
    if formula.softcap:
        scores = formula.softcap * torch.tanh(scores / formula.softcap)
    position = torch.arange(num_queries)[:, None] + num_keys - num_queries
    distance = position - torch.arange(num_keys)
    hidden = (distance > formula.left) if formula.left >= 0 else torch.zeros_like(distance, dtype=torch.bool)
    right = 0 if formula.causal else formula.right
    hidden = hidden | (-distance > right) if right >= 0 else hidden
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse what the kernels refuse."""
    assert query.dtype in (torch.float16, torch.bfloat16) and query.dtype == key.dtype == value.dtype
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]


class PagedWrapper:
    """What FlashInfer's wrappers share, for the layout "HND"."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str) -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and float_workspace_buffer.numel() >= 128 << 20
        assert kv_layout == "HND"
        self.num_plans = 0
        self.planned: dict[str, Any] = {}

    def keep(self, **planned: Any) -> None:
        for name in ("qo_indptr", "indptr", "indices", "last_page_len"):
            assert planned[name].dtype == torch.int32
        last, size = planned["last_page_len"], planned["page_size"]
        assert ((last >= 1) & (last <= size)).all()
        assert len(planned["indices"]) == planned["indptr"][-1] and (planned["indices"] >= 0).all()
        assert (planned["indptr"].diff() >= 1).all()
        self.num_plans += 1
        self.planned = planned

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Tensor | tuple[Tensor, Tensor],
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
        window_left: int | None = None,
    ) -> Tensor:
        planned = self.planned
        assert isinstance(paged_kv_cache, Tensor) and paged_kv_cache.is_contiguous() and q.is_contiguous()
        shape = (2, planned["num_kv_heads"], planned["page_size"], planned["head_dim"])
        assert paged_kv_cache.shape[1:] == shape and q.shape[1:] == (planned["num_qo_heads"], planned["head_dim"])
        assert q.dtype == planned["q_data_type"] and paged_kv_cache.dtype == planned["kv_data_type"]
        key, value = paged_kv_cache.unbind(1)
        check_tensors(q, key, value)
        result = torch.empty_like(q) if out is None else out
        assert result.shape == q.shape and result.dtype == q.dtype and result.is_contiguous()
        starts, pages = planned["qo_indptr"].tolist(), planned["indptr"].tolist()
        for row, last in enumerate(planned["last_page_len"].tolist()):
            blocks = planned["indices"][pages[row] : pages[row + 1]]
            length = (len(blocks) - 1) * planned["page_size"] + last
            dense = [part[blocks].transpose(1, 2).flatten(0, 1)[:length] for part in (key, value)]
            tokens = slice(starts[row], starts[row + 1])
            result[tokens] = attend(q[tokens], dense[0], dense[1], planned["formula"])
        return result


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)
        assert use_tensor_cores, "without, only some numbers of query heads for each KV head are computed"

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        sm_scale: float | None = None,
        non_blocking: bool = True,
    ) -> None:
        self.keep(
            qo_indptr=torch.arange(len(last_page_len) + 1, dtype=torch.int32),
            indptr=indptr,
            indices=indices,
            last_page_len=last_page_len,
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            page_size=page_size,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            formula=Formula(sm_scale or head_dim**-0.5, False, window_left, softcap=logits_soft_cap or 0.0),
        )


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: str | torch.dtype = "float16",
        kv_data_type: str | torch.dtype | None = None,
        non_blocking: bool = True,
    ) -> None:
        self.keep(
            qo_indptr=qo_indptr,
            indptr=paged_kv_indptr,
            indices=paged_kv_indices,
            last_page_len=paged_kv_last_page_len,
            num_qo_heads=num_qo_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim_qk,
            page_size=page_size,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            formula=Formula(sm_scale or head_dim_qk**-0.5, causal, window_left, softcap=logits_soft_cap or 0.0),
        )


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    formula: Formula,
    out: Tensor | None,
) -> Tensor:
    """Return the attention over caches [blocks, block_size, kv_heads, head_size], of any strides but the last."""
    check_tensors(query, key, value)
    assert starts.dtype == lengths.dtype == block_table.dtype == torch.int32 and block_table.stride(-1) == 1
    assert (block_table >= 0).all(), "kernels may load a whole row of the table"
    assert len(starts) - 1 == len(lengths) == len(block_table)
    size = key.shape[1]
    result = torch.empty_like(query) if out is None else out
    for row, length in enumerate(lengths.tolist()):
        blocks = block_table[row, : -(-length // size)]
        dense = [part[blocks].flatten(0, 1)[:length] for part in (key, value)]
        tokens = slice(int(starts[row]), int(starts[row + 1]))
        result[tokens] = attend(query[tokens], dense[0], dense[1], formula)
    return result


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor:
    assert cache_seqlens is not None and block_table is not None and k_cache.shape[1] % 256 == 0
    formula = Formula(softmax_scale or q.shape[-1] ** -0.5, causal, *window_size, softcap)
    starts = torch.arange(len(q) + 1, dtype=torch.int32) * q.shape[1]
    return attend_rows(q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens, block_table, formula, None).view_as(q)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    assert block_table is not None and k.shape[1] % 256 == 0
    lengths = cu_seqlens_k.diff().int()
    assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == lengths.max()
    formula = Formula(softmax_scale or q.shape[-1] ** -0.5, causal, *window_size, softcap)
    return attend_rows(q, k, v, cu_seqlens_q, lengths, block_table, formula, None)


def xpu_flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: list[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    assert cu_seqlens_k is None and seqused_k is not None and block_table is not None
    assert k.is_contiguous() and v.is_contiguous() and softcap == 0.0
    assert max_seqlen_q == cu_seqlens_q.diff().max() and max_seqlen_k == seqused_k.max()
    left, right = window_size or (-1, -1)
    formula = Formula(softmax_scale or q.shape[-1] ** -0.5, causal, left, right)
    return attend_rows(q, k, v, cu_seqlens_q, seqused_k, block_table, formula, out)


FLASHINFER = SimpleNamespace(
    BatchDecodeWithPagedKVCacheWrapper=BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper=BatchPrefillWithPagedKVCacheWrapper,
)
FLASH_ATTN = SimpleNamespace(
    flash_attn_with_kvcache=flash_attn_with_kvcache, flash_attn_varlen_func=flash_attn_varlen_func
)
XPU_KERNELS = SimpleNamespace(flash_attn_varlen_func=xpu_flash_attn_varlen_func)
