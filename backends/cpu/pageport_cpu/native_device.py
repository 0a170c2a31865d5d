"""``NativeCpuDevice``: every op by the compiled kernels; a captured step is one native call."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.coverage import check_kv
from pageport.backend.graph import Graph
from pageport.backend.reference.kv import check_memory
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport_cpu import activations, attention, kv_pool, norms, row_ops, sampling, weights
from pageport_cpu.device import CpuDevice
from pageport_cpu.library import Library
from pageport_cpu.rope import rope
from pageport_cpu.tape_graph import TapeGraph
from pageport_cpu.weight_memory import WeightMemory

OPS = (
    *("rms_norm", "add_rms_norm", "layer_norm", "add", "scale", "rope", "silu_mul", "gelu_mul", "gelu", "softcap"),
    *("linear_silu_mul", "gather_rows", "sample"),
)


class NativeCpuDevice(CpuDevice):
    """All processors of this machine, through kernels compiled for its instruction set.

    Activations are computed in float32 whatever they are stored as; weights stay as they are stored, and those in
    blocks of 4 to 8 bits are multiplied by activations rounded to 8 bits. Every result is the same, bit for bit,
    whatever else is in the batch and however many threads there are.
    """

    def __init__(self, library: Library, threads: int, *, eager_cache: bool = False) -> None:
        # Torch's own pool would fight with the kernels' for the processors.
        super().__init__(threads=1, eager_cache=eager_cache)
        self._library = library
        self._weight_memory = WeightMemory()
        library.set_num_threads(threads)
        self._capabilities = Capabilities(
            compute_dtypes=("float32", "bfloat16", "float16"),
            preferred_dtype="float32",
            kv_dtypes=kv_pool.KV_DTYPES,
            preferred_kv_dtype="bfloat16",  # reading the cache takes half the time, and half the memory
            weight_schemes=weights.WEIGHT_SCHEMES,
            quantisations=("int8", "int4"),
            quantises_activations=True,
            block_sizes=kv_pool.BLOCK_SIZES,
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
            # Products run at full speed from 64 rows on; longer steps only make those who decode wait.
            step_tokens=256,
            determinism="batch",
            graphs_resize=True,
            features={**{f"op:{name}": 1 for name in OPS}, **kv_pool.FEATURES, "graph": 1},
        )

    @property
    def instruction_set(self) -> str:
        """What the kernels were compiled for."""
        return self._library.instruction_set

    def capture(self, run: Callable[[], None]) -> Graph:
        with self._library.record() as tape:
            run()
        return TapeGraph(tape)

    # --- weights -----------------------------------------------------------------------------------------------

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> weights.Weight:
        return weights.prepare_weight(self._library, spec, parts, self._weight_memory)

    def weight_bytes(self, weight: weights.Weight) -> int:
        return weight.num_bytes

    def linear(
        self, weight: weights.Weight, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        out = x.new_empty(x.shape[0], weight.out_features) if out is None else out
        weight.linear(self._library, x, bias, out)
        return out

    def embed(self, weight: weights.Weight, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(len(token_ids), weight.in_features, dtype=weight.compute_dtype)
        weight.embed(self._library, token_ids, out)
        return out

    # --- KV cache ----------------------------------------------------------------------------------------------

    def bytes_per_block(self, spec: KVSpec) -> int:
        return kv_pool.bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> kv_pool.CpuKVPool:
        check_kv(self.capabilities, spec)
        check_memory(spec, num_blocks, self.memory())
        pool = kv_pool.allocate_kv(spec, num_blocks)
        if self._eager_cache:
            pool.memory.zero_()
        return pool

    def free_kv(self, pool: kv_pool.CpuKVPool) -> None:
        kv_pool.free_kv(pool)

    def write_kv(
        self,
        pool: kv_pool.CpuKVPool,
        layer: int,
        key: Tensor,
        value: Tensor,
        slot_mapping: Tensor,
        params: AttentionParams,
    ) -> None:
        kv_pool.write_kv(self._library, pool, layer, key, value, slot_mapping, params)

    def copy_blocks(self, pool: kv_pool.CpuKVPool, pairs: Sequence[tuple[int, int]]) -> None:
        kv_pool.copy_blocks(pool, pairs)

    def export_blocks(self, pool: kv_pool.CpuKVPool, block_ids: Sequence[int], out: Tensor) -> None:
        kv_pool.export_blocks(pool, block_ids, out)

    def import_blocks(self, pool: kv_pool.CpuKVPool, block_ids: Sequence[int], data: Tensor) -> None:
        kv_pool.import_blocks(pool, block_ids, data)

    # --- attention ---------------------------------------------------------------------------------------------

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Any:
        """Return nothing: the kernel reads the batch's own tensors."""

    def attention(
        self,
        pool: kv_pool.CpuKVPool,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        batch: AttentionBatch,
        out: Tensor,
    ) -> None:
        attention.attention(self._library, pool, layer, query, params, batch, out)

    # --- optional ops ------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None) -> Tensor:
        out = _target(out, x)
        norms.rms_norm(self._library, x, None, weight, epsilon, out)
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None
    ) -> Tensor:
        out = _target(out, x)
        norms.rms_norm(self._library, x, residual, weight, epsilon, out)
        return out

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, out: Tensor | None = None
    ) -> Tensor:
        out = _target(out, x)
        norms.layer_norm(self._library, x, weight, bias, epsilon, out)
        return out

    def add(self, x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
        out = _target(out, x)
        row_ops.add(self._library, x, y, out)
        return out

    def scale(self, x: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
        out = _target(out, x)
        row_ops.scale(self._library, x, factor, out)
        return out

    def rope(self, query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
        rope(self._library, query, key, positions, cos_sin, interleaved)

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2) if out is None else out
        activations.silu_mul(self._library, gate_up, out)
        return out

    def linear_silu_mul(
        self, weight: weights.Weight, x: Tensor, bias: Tensor | None, gate_up: Tensor, out: Tensor | None = None
    ) -> Tensor:
        out = x.new_empty(len(x), weight.out_features // 2) if out is None else out
        weight.linear_silu_mul(self._library, x, bias, gate_up, out)
        return out

    def gelu_mul(self, gate_up: Tensor, tanh: bool, out: Tensor | None = None) -> Tensor:
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2) if out is None else out
        activations.gelu_mul(self._library, gate_up, tanh, out)
        return out

    def gelu(self, x: Tensor, tanh: bool, out: Tensor | None = None) -> Tensor:
        out = _target(out, x)
        activations.gelu(self._library, x, tanh, out)
        return out

    def softcap(self, x: Tensor, cap: float, out: Tensor | None = None) -> Tensor:
        out = _target(out, x)
        row_ops.softcap(self._library, x, cap, out)
        return out

    def gather_rows(self, x: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        out = x.new_empty(len(rows), x.shape[1]) if out is None else out
        row_ops.gather_rows(self._library, x, rows, out)
        return out

    def sample(self, logits: Tensor, batch: ChoiceBatch) -> Choice:
        return sampling.sample(self._library, logits, batch)


def _target(out: Tensor | None, x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
