"""``StoredMatrix``: a random matrix as a file would hold it, with the values that gguf reads from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from pageport.backend.weights import PLAIN_SCHEMES, StoredTensor

PLAIN_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# gguf reads these formats but does not write them: where a block's float16 scales are; all other bytes are free.
SCALE_OFFSETS: Mapping[str, tuple[int, ...]] = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}


@dataclass(frozen=True)
class StoredMatrix:
    """``stored`` is what a backend is given; ``values`` float64 [out_features, in_features] what it means."""

    stored: StoredTensor
    values: Tensor


def random_matrix(
    scheme: str, out_features: int, in_features: int, generator: torch.Generator, name: str = "weight"
) -> StoredMatrix:
    """Make a matrix; ``in_features`` is a multiple of 256 for the block schemes."""
    dense = torch.randn(out_features, in_features, generator=generator)
    if scheme in PLAIN_SCHEMES:
        return stored_matrix(dense.to(PLAIN_DTYPES[scheme]), name)
    kind = gguf.GGMLQuantizationType[scheme.upper()]
    if scheme in SCALE_OFFSETS:
        blocks = _random_blocks(scheme, kind, out_features, in_features, generator)
    else:
        blocks = gguf.quants.quantize(dense.numpy(), kind)
    stored = StoredTensor(
        scheme=scheme,
        shape=(out_features, in_features),
        read=lambda: {"blocks": torch.from_numpy(blocks)},
        source=f"conformance.gguf: {name}",
    )
    return StoredMatrix(stored, torch.from_numpy(gguf.quants.dequantize(blocks, kind)).double())


def block_size(scheme: str) -> int:
    """Return how many weights a block of a block scheme has."""
    num_weights: int = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[scheme.upper()]][0]
    return num_weights


def stored_matrix(tensor: Tensor, name: str = "weight") -> StoredMatrix:
    """Store a matrix of plain numbers as it is, strides included."""
    scheme = next(scheme for scheme, dtype in PLAIN_DTYPES.items() if dtype == tensor.dtype)
    stored = StoredTensor(
        scheme=scheme,
        shape=(tensor.shape[0], tensor.shape[1]),
        read=lambda: {"weight": tensor},
        source=f"conformance.safetensors: {name}",
    )
    return StoredMatrix(stored, tensor.double())


def _random_blocks(
    scheme: str, kind: gguf.GGMLQuantizationType, out_features: int, in_features: int, generator: torch.Generator
) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    num_weights, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (out_features, in_features // num_weights, num_bytes)
    blocks = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    for offset in SCALE_OFFSETS[scheme]:
        # Weights of about 1: a 6-bit or 8-bit scale times an integer of a few bits.
        scales = (torch.rand(shape[:2], generator=generator) + 0.5) / 1024
        blocks[:, :, offset : offset + 2] = scales.half().unsqueeze(-1).view(torch.uint8)
    return blocks.view(out_features, -1).numpy()
