"""``TpuDevice``: KV caches, attention and whole models on a JAX device; core's tensors stay on the host.

What comes before a program, or beside it, is inherited: matrices lie on the host as torch tensors until a program is
built of them.
"""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec, Memory
from pageport.backend.batch import AttentionBatch
from pageport.backend.coverage import check_kv
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.device import Device
from pageport.backend.program import Bucket, ModelProgram
from pageport.errors import BackendUnavailable, OutOfMemory, UnsupportedFeature
from pageport_tpu import kv
from pageport_tpu.arrays import as_tensor, copied_array, padded_size
from pageport_tpu.attention import Formula, Sequences, paged_attention
from pageport_tpu.chips import is_simulated
from pageport_tpu.kv import KVPool
from pageport_tpu.parameters import parameters_of
from pageport_tpu.program import CompiledSteps, TpuProgram

DESCRIPTION_VERSION = 1
# What a simulated device says it has; what lies on it is counted.
SIMULATED_BYTES = 2 << 30

CAPABILITIES = Capabilities(
    compute_dtypes=("float32", "bfloat16"),
    preferred_dtype="bfloat16",
    kv_dtypes=("float32", "bfloat16"),
    block_sizes=(16, 32, 64, 128),
    kv_kinds=("full", "sliding"),
    attention_variants=("sliding_window", "softcap"),
    decode_first=True,
    mixed_batches=False,
    static_shapes=True,
    token_buckets=(16, 64, 256, 1024),
    # No context buckets: the attention kernel's grid ends with the longest sequence of a step.
    request_buckets=(1, 8, 32, 128),
    determinism="run",
    features={"whole_model": DESCRIPTION_VERSION},
)

_attend = jax.jit(paged_attention, static_argnames=("formula", "interpret"))


class TpuDevice(Device):
    """One JAX device: a TPU, or the CPU in its place."""

    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self._compiled = CompiledSteps()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def num_programs(self) -> int:
        """How many steps have been compiled."""
        return len(self._compiled)

    def memory(self) -> Memory:
        statistics = self._device.memory_stats() if self._is_tpu else None
        if statistics is None:
            arrays = jax.live_arrays()
            used = sum(array.nbytes for array in arrays if self._device in array.devices())
            return Memory(
                total=SIMULATED_BYTES, free=max(0, SIMULATED_BYTES - used), reserved_by_this_process=min(used, SIMULATED_BYTES)
            )
        total, used = statistics["bytes_limit"], statistics["bytes_in_use"]
        return Memory(total=total, free=total - used, reserved_by_this_process=used)

    def close(self) -> None:
        self._compiled = CompiledSteps()

    # --- whole models --------------------------------------------------------------------------------------------

    def build_model(
        self,
        description: DecoderDescription,
        weights: DecoderWeights,
        pools: Sequence[Any],
        buckets: Sequence[Bucket],
    ) -> ModelProgram:
        """Hand the weights to the device.

        Raises:
            UnsupportedFeature: a newer description than this plugin knows.
        """
        if description.version > DESCRIPTION_VERSION:
            raise UnsupportedFeature(
                f"pageport-tpu computes decoders of version {DESCRIPTION_VERSION}; this one needs "
                f"{description.version}. Upgrade pageport-tpu."
            )
        return TpuProgram(description, parameters_of(weights, self._device), pools, self._compiled, self._device)

    # --- KV cache --------------------------------------------------------------------------------------------------

    def bytes_per_block(self, spec: KVSpec) -> int:
        return kv.bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> KVPool:
        check_kv(self.capabilities, spec)
        needed, memory = num_blocks * kv.bytes_per_block(spec), self.memory()
        if needed > memory.free:
            raise OutOfMemory(
                f"A KV cache of {num_blocks} blocks of {kv.bytes_per_block(spec)} bytes takes {needed / 2**30:.2f} "
                f"GiB; {memory.free / 2**30:.2f} GiB of {memory.total / 2**30:.2f} GiB are free. At most "
                f"{memory.free // kv.bytes_per_block(spec)} blocks fit."
            )
        return kv.allocate(spec, num_blocks, self._device)

    def free_kv(self, pool: KVPool) -> None:
        pool.free()

    def write_kv(
        self, pool: KVPool, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        rows = padded_size(len(key), 16)
        arrays = [copied_array(tensor, self._device, rows) for tensor in (key, value)]
        slots = copied_array(slot_mapping, self._device, rows, fill=-1)
        written = kv.write_layer(pool.layers[layer], *arrays, slots)
        pool.layers = (*pool.layers[:layer], written, *pool.layers[layer + 1 :])

    def copy_blocks(self, pool: KVPool, pairs: Sequence[tuple[int, int]]) -> None:
        pool.copy(pairs)

    def export_blocks(self, pool: KVPool, block_ids: Sequence[int], out: Tensor) -> None:
        pool.export(block_ids, out)

    def import_blocks(self, pool: KVPool, block_ids: Sequence[int], data: Tensor) -> None:
        pool.load(block_ids, data)

    # --- attention outside of programs ---------------------------------------------------------------------------

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> None:
        """Plan nothing: the kernel reads lengths and tables as they are."""

    def check_attention(self, spec: KVSpec, num_heads: int, params: AttentionParams) -> None:
        super().check_attention(spec, num_heads, params)
        if not params.causal:
            raise UnsupportedFeature("pageport-tpu computes causal attention alone. Use another backend.")

    def attention(
        self, pool: KVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        """Attend for all requests with one query at once, then for each prompt."""
        out[: batch.num_tokens] = 0
        starts, lengths = batch.host.query_start_loc, batch.host.seq_lens
        counts = np.diff(starts)
        singles = np.flatnonzero((counts == 1) & (lengths > 0))
        if len(singles):
            tokens = torch.from_numpy(starts[singles].astype(np.int64))
            out[tokens] = self._attended(pool, layer, query[tokens, None], params, batch, singles)[:, 0]
        for request in np.flatnonzero((counts > 1) & (lengths > 0)):
            tokens = slice(int(starts[request]), int(starts[request + 1]))
            out[tokens] = self._attended(pool, layer, query[None, tokens], params, batch, np.array([request]))[0]

    def _attended(
        self,
        pool: KVPool,
        layer: int,
        query: Tensor,  # [requests, queries, heads, head_size]
        params: AttentionParams,
        batch: AttentionBatch,
        requests: Any,
    ) -> Tensor:
        """Fill up to powers of two, so that few shapes are compiled."""
        num_requests, num_queries = query.shape[:2]
        rows, queries = padded_size(num_requests), padded_size(num_queries)
        padded = torch.nn.functional.pad(query, (0, 0, 0, 0, 0, queries - num_queries))
        table = batch.host.block_table[requests]
        sequences = [np.zeros(rows, np.int32), np.zeros(rows, np.int32), np.zeros((rows, padded_size(table.shape[1])), np.int32)]
        sequences[0][:num_requests] = batch.host.seq_lens[requests] - num_queries
        sequences[1][:num_requests] = batch.host.seq_lens[requests]
        sequences[2][:num_requests, : table.shape[1]] = table
        attended = _attend(
            copied_array(padded, self._device, rows),
            *pool.layers[layer],
            Sequences(*(jax.device_put(array, self._device) for array in sequences)),
            formula=Formula(params.scale, params.sliding_window, params.softcap),
            interpret=not self._is_tpu,
        )
        return as_tensor(attended)[:num_requests, :num_queries]

    @property
    def _is_tpu(self) -> bool:
        return bool(self._device.platform == "tpu")


def open_device(ordinal: int) -> TpuDevice:
    """Open a chip, or the CPU in its place where simulation is asked for.

    Raises:
        BackendUnavailable: JAX does not find it.
    """
    platform = "cpu" if is_simulated(os.environ) else "tpu"
    try:
        return TpuDevice(jax.local_devices(backend=platform)[ordinal])
    except (RuntimeError, IndexError) as error:
        raise BackendUnavailable(f"JAX does not open TPU {ordinal}: {error}") from error
