"""``RotatingDevice``: core's plain-torch reference, with keys that are rotated before they are rounded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import AttentionParams
from pageport.testing.conformance.kv_rounding import FLOAT8, rotated, rotated_features, rotation_of_keys
from pageport.testing.conformance.oracle import as_floats
from pageport.testing.reference_device import ReferenceDevice


class RotatingDevice(ReferenceDevice):
    """Rotates keys of caches in ``kv_dtypes``, and queries over them."""

    def __init__(self, kv_dtypes: Sequence[str]) -> None:
        self._rotated = tuple(kv_dtypes)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, features={rotation_of_keys(dtype): 1 for dtype in self._rotated})

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        dtype = pool.spec.dtype
        if dtype in self._rotated:
            largest = FLOAT8[dtype].largest * (1.0 if params.k_scale is None else float(params.k_scale))
            key = _rotated(key.clamp(-largest, largest)) / rotated_features(key.shape[-1])
        super().write_kv(pool, layer, key, value, slot_mapping, params)

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        turned = _rotated(query) if pool.spec.dtype in self._rotated else query
        super().attention(pool, layer, turned, params, batch, out)


def _rotated(values: Tensor) -> Tensor:
    return torch.from_numpy(rotated(as_floats(values))).to(values)
