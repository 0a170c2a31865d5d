"""``TpuDevice``: KV caches, attention and whole models on a JAX device; core's tensors stay on the host.

What comes before a program, or beside it, is inherited: matrices lie on the host as torch tensors until a program is
built of them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, DecoderDescription, KVSpec, Memory
from pageport.backend.batch import AttentionBatch
from pageport.backend.coverage import check_kv
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.device import Device
from pageport.backend.program import Bucket, Compilation, ModelProgram
from pageport.errors import BackendUnavailable, OutOfMemory, UnsupportedFeature
from pageport_tpu import kv
from pageport_tpu.arrays import JaxDevice, as_tensor, copied_array, padded_size
from pageport_tpu.attention import Formula, Sequences, paged_attention
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
    block_sizes=(16, 32, 128),
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

_attention = jax.jit(paged_attention, static_argnames=("formula", "interpret"))


class TpuDevice(Device):
    """One JAX device: a TPU, or the CPU in its place."""

    def __init__(self, device: JaxDevice) -> None:
        self._device = device
        self._compiled = CompiledSteps()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def compilations(self) -> Sequence[Compilation]:
        return tuple(self._compiled.compilations)

    def memory(self) -> Memory:
        statistics = self._device.memory_stats() if self._is_tpu else None
        if statistics is None:
            arrays = jax.live_arrays()
            used = sum(array.nbytes for array in arrays if self._device in array.devices())
            return Memory(
                total=SIMULATED_BYTES,
                free=max(0, SIMULATED_BYTES - used),
                reserved_by_this_process=min(used, SIMULATED_BYTES),
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
        try:
            return kv.allocate(spec, num_blocks, self._device)
        except jax.errors.JaxRuntimeError as error:
            raise OutOfMemory(f"{self._device} refuses a KV cache of {num_blocks} blocks: {error}") from error

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
        """Attend for the requests with one query together, then for the others."""
        out[: batch.num_tokens] = 0
        counts = np.diff(batch.host.query_start_loc)
        is_real = batch.host.seq_lens > 0
        for chosen in (is_real & (counts == 1), is_real & (counts > 1)):
            if chosen.any():
                self._attend(pool, layer, query, params, batch, np.flatnonzero(chosen), out)

    def _attend(
        self,
        pool: KVPool,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        batch: AttentionBatch,
        requests: Any,
        out: Tensor,
    ) -> None:
        """Lay the queries out as a matrix of requests and queries, filled up so that few shapes are compiled."""
        firsts = batch.host.query_start_loc[requests]
        counts = batch.host.query_start_loc[requests + 1] - firsts
        table = batch.host.block_table[requests]
        is_decode = counts.max() == 1
        rows, columns = padded_size(len(requests), 8 if is_decode else 1), padded_size(table.shape[1], 8)
        queries = 1 if is_decode else padded_size(int(counts.max()), 32)
        request, place = np.nonzero(np.arange(queries) < counts[:, None])
        tokens = torch.from_numpy(firsts[request] + place)
        laid_out = query.new_zeros(rows, queries, *query.shape[1:])
        laid_out[request, place] = query[tokens]
        starts, lengths, tables = (
            np.zeros(rows, np.int32),
            np.zeros(rows, np.int32),
            np.zeros((rows, columns), np.int32),
        )
        lengths[: len(requests)] = batch.host.seq_lens[requests]
        starts[: len(requests)] = batch.host.seq_lens[requests] - counts
        tables[: len(requests), : table.shape[1]] = table
        attended = _attention(
            copied_array(laid_out, self._device),
            *pool.layers[layer],
            Sequences(*(jax.device_put(array, self._device) for array in (starts, lengths, tables))),
            formula=Formula(params.scale, params.sliding_window, params.softcap),
            interpret=not self._is_tpu,
        )
        out[tokens] = as_tensor(attended)[request, place]

    @property
    def _is_tpu(self) -> bool:
        return bool(self._device.platform == "tpu")


def open_device(ordinal: int, platform: str) -> TpuDevice:
    """Open a device of one of JAX's platforms: a TPU, or the CPU in its place.

    Raises:
        BackendUnavailable: JAX does not find it.
    """
    try:
        return TpuDevice(jax.local_devices(backend=platform)[ordinal])
    except (RuntimeError, IndexError) as error:
        raise BackendUnavailable(f"JAX does not open device {ordinal} of its platform {platform}: {error}") from error
