"""Plain descriptions of the KV cache and of attention; tensors appear only as opaque values."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class KVSpec:
    """The cache of one group of layers with the same shape.

    ``dtype`` is named as in torch. ``float8_e4m3fn`` and ``float8_e5m2`` hold each number over ``k_scale`` or
    ``v_scale`` (over 1 where there is none), rounded to nearest; what is beyond the dtype's largest finite number
    becomes that. ``int8`` holds 127ths of the largest magnitude among one token's numbers of one head, whose scale the
    device keeps beside them in its pool and counts in ``bytes_per_block``. NaN comes out as NaN, with int8 in all
    numbers of that token and head.

    The feature ``rotated_keys:<dtype>`` says that a device rotates keys of an 8-bit float: it multiplies them by a
    matrix before it rounds them, and queries by the same one, so that scores stay as they are (arXiv:2404.00456). It is
    that of Walsh and Hadamard in Sylvester's order, over each n features in a row, with n the largest power of two that
    divides ``head_size``. Keys are limited to the largest number before, and divided by n. NaN comes out of all n.
    """

    num_layers: int
    num_kv_heads: int  # on this rank
    head_size: int
    value_head_size: int
    block_size: int  # tokens
    dtype: str  # as in torch, without the prefix
    kind: Literal["full", "sliding"] = "full"


@dataclass(frozen=True, kw_only=True)
class AttentionParams:
    """What one layer's attention computes; fixed while the model is loaded.

    ``softmax(softcap(q·k·scale) + alibi + mask)·v``, with ``softcap(x) = cap·tanh(x / cap)``.
    """

    scale: float
    causal: bool = True
    # A query at position p sees positions p - sliding_window + 1 … p.
    sliding_window: int | None = None
    softcap: float | None = None
    # float32 device tensors: sinks [heads], alibi slopes [heads], k_scale and v_scale [] for 8-bit floats.
    sinks: Any = None
    alibi: Any = None
    k_scale: Any = None
    v_scale: Any = None


@dataclass(frozen=True)
class Memory:
    """A device's memory in bytes; ``free`` respects limits set from outside (a container's, say)."""

    total: int
    free: int
    reserved_by_this_process: int
