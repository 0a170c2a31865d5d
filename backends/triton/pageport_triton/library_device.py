"""``LibraryDevice``: a GPU whose attention is computed by another package's kernels, and the rest by Triton's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.errors import UnsupportedFeature
from pageport_triton.accelerator import Accelerator
from pageport_triton.accelerator_device import AcceleratorDevice
from pageport_triton.paged_step import PagedRows, PagedStep, paged_step

# What these libraries compute in, and keep: queries are converted to the dtype of the cache.
DTYPES = ("bfloat16", "float16")
VARIANTS = ("sliding_window", "softcap", "sinks", "alibi")


class Limits(NamedTuple):
    """What a library covers, as far as it is used here."""

    library: str  # as the option ``attention`` names it
    head_sizes: tuple[int, ...]
    block_sizes: tuple[int, ...]
    variants: tuple[str, ...]
    most_heads_per_kv_head: int | None = None


class LibraryDevice(AcceleratorDevice):
    """One GPU; who inherits calls the library in both halves of attention.

    Steps are neither captured nor overlapped: a library plans on the host, for exact lengths, in memory that it uses
    again for the next step.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        torch_device: torch.device,
        architecture: str,
        collective_backend: str,
        limits: Limits,
    ) -> None:
        super().__init__(accelerator, torch_device, architecture, collective_backend)
        self._limits = limits
        self._limited = replace(
            super().capabilities,
            compute_dtypes=DTYPES,
            preferred_dtype=DTYPES[0],
            kv_dtypes=DTYPES,
            block_sizes=limits.block_sizes,
            head_sizes=limits.head_sizes,
            attention_variants=limits.variants,
            determinism="none",
            pipeline_depth=0,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._limited

    def check_attention(self, spec: KVSpec, num_heads: int, params: AttentionParams) -> None:
        limits = self._limits
        for variant in VARIANTS:
            if getattr(params, variant) is not None:
                self._check(variant, variant, limits.variants)
        self._check("a cache of", spec.dtype, DTYPES)
        self._check("blocks of", spec.block_size, limits.block_sizes)
        self._check("heads of", spec.head_size, limits.head_sizes)
        self._check("values of", spec.value_head_size, (spec.head_size,))
        if limits.most_heads_per_kv_head is not None:
            groups = range(1, limits.most_heads_per_kv_head + 1)
            self._check("query heads per KV head:", num_heads // spec.num_kv_heads, groups)
        super().check_attention(spec, num_heads, params)

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> PagedStep:
        return paged_step(batch, spec.block_size, self.torch_device)

    def query(self, query: Tensor, rows: PagedRows, spec: KVSpec) -> Tensor:
        """Return the queries of ``rows``, dense, in the dtype of the cache."""
        dtype: torch.dtype = getattr(torch, spec.dtype)
        return query[rows.tokens].to(dtype).contiguous()

    def place(self, out: Tensor, rows: PagedRows, spec: KVSpec) -> Tensor | None:
        """Return where the library may write; None where it must return a tensor of its own."""
        place = out[rows.tokens]
        fits = place.is_contiguous() and place.dtype == getattr(torch, spec.dtype)
        return place if fits else None

    def finish(self, out: Tensor, rows: PagedRows, result: Tensor) -> None:
        """Put a result where it belongs, if it is not there, and clear padding."""
        place = out[rows.tokens]
        if result.data_ptr() != place.data_ptr():
            place.copy_(result)
        for tokens in rows.padding:
            out[tokens].zero_()

    def _check(self, what: str, wanted: object, covered: Sequence[object]) -> None:
        if wanted in covered:
            return
        name = what if what == wanted else f"{what} {wanted}"
        listed = f"1 … {covered[-1]}" if isinstance(covered, range) else ", ".join(map(str, covered)) or "none"
        raise UnsupportedFeature(
            f"attention={self._limits.library} does not cover {name} (it does: {listed}). "
            "Use --backend-option attention=triton."
        )


def layer_blocks(pool: Any, layer: int) -> Tensor:
    """Return one layer of a pool of the Triton kernels [blocks, 2, kv_heads, block_size, head_size]: keys, values.

    Only for caches whose keys and values are equally long, and which have no scales.
    """
    spec: KVSpec = pool.spec
    dtype: torch.dtype = getattr(torch, spec.dtype)
    memory: Tensor = pool.memory[layer]
    return memory.view(dtype).view(-1, 2, spec.num_kv_heads, spec.block_size, spec.head_size)


def window_bounds(params: AttentionParams) -> tuple[int, int]:
    """Return how many keys left and right of its own a query sees; -1: all."""
    left = -1 if params.sliding_window is None else params.sliding_window - 1
    return left, 0 if params.causal and left >= 0 else -1
