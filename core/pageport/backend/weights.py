"""A weight matrix as its file holds it, and as the model wants it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# Formats of stored weights: plain numbers, and GGML's blocks.
PLAIN_SCHEMES = ("f32", "bf16", "f16")
BLOCK_SCHEMES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """The matrix the model multiplies by: ``y[out_features] = W[out_features, in_features] · x``."""

    name: str
    out_features: int
    in_features: int
    compute_dtype: str
    # With a shard, this rank's rows (axis 0) or columns (axis 1).
    shard_rank: int = 0
    shard_world_size: int = 1
    shard_axis: int | None = None
    # `--dtype float32` and its like: dequantise even what the device could keep.
    dequantise: bool = False
    # `--quantization`: keep the matrix in a form of the device's own with about so many bits a weight, whatever its
    # stored scheme. Only asked for when `Capabilities.quantisations` names it, and never with `dequantise`.
    quantisation: Literal["int8", "int4"] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One stored matrix of ``shape`` [out_features, in_features], read when ``read`` is called.

    ``scheme`` names the format: ``f32 bf16 f16`` plain, or a GGML block type in lower case (``q4_0 q4_1 q5_0
    q5_1 q8_0 q4_k q5_k q6_k``). ``read()`` maps the file and returns the tensors of that format, rows already in
    the order the model wants: ``{"weight": [out, in]}`` for the plain ones, ``{"blocks": uint8 [out,
    bytes_per_row]}`` for GGML's. The mapping is released when the result is dropped, so hold one at a time.
    """

    scheme: str
    shape: tuple[int, int]
    read: Callable[[], Mapping[str, Any]]
    source: str = field(default="", compare=False)  # file and tensor name, for messages
