"""``KVPool``: keys and values of one cache group as JAX arrays, which are updated in place because they are donated."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from pageport.backend import KVSpec
from pageport_tpu.arrays import JaxDevice, padded_size


class LayerCache(NamedTuple):
    """One layer's blocks; a token's heads lie side by side, so that a TPU's rows of 128 numbers are filled."""

    keys: Array  # [blocks, block_size, kv_heads * head_size]
    values: Array  # [blocks, block_size, kv_heads * value_head_size]


Layers = tuple[LayerCache, ...]


@dataclass(slots=True)
class KVPool:
    """The arrays are replaced by each update; nobody else may hold them."""

    spec: KVSpec
    num_blocks: int
    layers: Layers

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) as if one after the other, in all layers."""
        origins: dict[int, int] = {}
        for source, target in pairs:
            origins[target] = origins.get(source, source)
        if origins:
            content = _gather(self.layers, _ids(list(origins.values())))
            self.layers = _scatter(self.layers, _ids(list(origins), nowhere=self.num_blocks), content)

    def export(self, block_ids: Sequence[int], out: Tensor) -> None:
        """Write each block's keys of every layer, then its values, to a row of ``out``."""
        if not block_ids:
            return
        content = _gather(self.layers, _ids(block_ids))
        parts = [np.asarray(part)[: len(block_ids)] for part in _parts(content)]
        rows = [part.reshape(len(block_ids), -1).view(np.uint8) for part in parts]
        out.copy_(torch.from_numpy(np.concatenate(rows, axis=1)))

    def load(self, block_ids: Sequence[int], data: Tensor) -> None:
        """Put what ``export`` wrote into blocks."""
        if not block_ids:
            return
        ids = _ids(block_ids, nowhere=self.num_blocks)
        start = 0
        arrays: list[Any] = []
        for part in _parts(self.layers):
            end = start + part[0].nbytes
            blocks = np.zeros((len(ids), *part.shape[1:]), part.dtype)
            columns = np.ascontiguousarray(data[:, start:end].cpu().numpy())
            blocks[: len(block_ids)] = columns.view(part.dtype).reshape(len(block_ids), *part.shape[1:])
            arrays.append(blocks)
            start = end
        half = len(self.layers)
        content = tuple(map(LayerCache, arrays[:half], arrays[half:]))
        self.layers = _scatter(self.layers, ids, content)

    def free(self) -> None:
        """Give the memory back."""
        for part in _parts(self.layers):
            part.delete()
        self.layers = ()


def bytes_per_block(spec: KVSpec) -> int:
    """Return the bytes one block takes over all layers."""
    numbers = spec.block_size * spec.num_kv_heads * (spec.head_size + spec.value_head_size)
    return spec.num_layers * numbers * jnp.dtype(spec.dtype).itemsize


def allocate(spec: KVSpec, num_blocks: int, device: JaxDevice) -> KVPool:
    """Allocate a pool of zeros."""

    def zeros(size: int) -> Array:
        shape = (num_blocks, spec.block_size, spec.num_kv_heads * size)
        return jnp.zeros(shape, jnp.dtype(spec.dtype), device=device)

    layers = tuple(LayerCache(zeros(spec.head_size), zeros(spec.value_head_size)) for _ in range(spec.num_layers))
    return KVPool(spec, num_blocks, layers)


def write_slots(layer: LayerCache, key: Array, value: Array, slots: Array) -> LayerCache:
    """Store [tokens, kv_heads, size] at their slots; slot -1 is skipped."""
    num_slots = layer.keys.shape[0] * layer.keys.shape[1]
    # What lies behind the last slot is dropped; a negative index would count from the end.
    places = jnp.where(slots < 0, num_slots, slots)

    def updated(stored: Array, new: Array) -> Array:
        rows = stored.reshape(num_slots, -1)
        rows = rows.at[places].set(new.reshape(len(new), -1).astype(stored.dtype), mode="drop")
        return rows.reshape(stored.shape)

    return LayerCache(updated(layer.keys, key), updated(layer.values, value))


# As an op of its own, for what writes outside of programs.
write_layer = jax.jit(write_slots, donate_argnums=0)


@jax.jit
def _gather(layers: Layers, block_ids: Array) -> Layers:
    taken: Layers = jax.tree.map(lambda stored: jnp.take(stored, block_ids, axis=0, mode="clip"), layers)
    return taken


@partial(jax.jit, donate_argnums=0)
def _scatter(layers: Layers, block_ids: Array, content: Layers) -> Layers:
    stored: Layers = jax.tree.map(lambda old, new: old.at[block_ids].set(new, mode="drop"), layers, content)
    return stored


def _parts(layers: Layers) -> list[Array]:
    """Return the keys of every layer, then the values."""
    return [layer.keys for layer in layers] + [layer.values for layer in layers]


def _ids(block_ids: Sequence[int], nowhere: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    ids = np.full(padded_size(len(block_ids)), nowhere, np.int32)
    ids[: len(block_ids)] = block_ids
    return ids
