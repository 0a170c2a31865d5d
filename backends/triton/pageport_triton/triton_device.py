"""``TritonDevice``: every op by the Triton kernels, on whatever torch device they can run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.coverage import check_kv
from pageport.backend.device import Device
from pageport.backend.reference.kv import check_memory
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.errors import UnsupportedFeature
from pageport_triton import activations, kv_pool, norms, weights
from pageport_triton import copy_blocks as block_copies
from pageport_triton import gather_rows as row_gathering
from pageport_triton import rope as rotations
from pageport_triton import sample as sampling
from pageport_triton import write_kv as kv_writes
from pageport_triton.configurations import configuration_of
from pageport_triton.decode_attention import decode_attention
from pageport_triton.op_configurations import OP_CONFIGURATIONS
from pageport_triton.prefill_attention import prefill_attention

OPS = (
    *("rms_norm", "add_rms_norm", "layer_norm", "add", "scale", "rope", "rope_write_kv", "silu_mul", "gelu_mul"),
    *("gelu", "softcap", "gather_rows", "sample"),
)


class TritonDevice(Device):
    """The kernels, configured for one class of architectures; who inherits says what memory there is."""

    def __init__(self, torch_device: torch.device, architecture: str) -> None:
        """Look the class of architectures up in the tables.

        Args:
            torch_device: tensors on the host are for Triton's interpreter, whose class is ``interpreter``.
        """
        self._torch_device = torch_device
        self._attention = configuration_of(architecture)
        self._ops = OP_CONFIGURATIONS[architecture]
        self._capabilities = Capabilities(
            compute_dtypes=("bfloat16", "float16", "float32"),
            preferred_dtype="bfloat16",
            kv_dtypes=kv_pool.KV_DTYPES,
            weight_schemes=weights.WEIGHT_SCHEMES,
            quantisations=weights.QUANTISATIONS,
            block_sizes=kv_pool.BLOCK_SIZES,
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
            determinism="run",
            features={f"op:{name}": 1 for name in OPS},
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    # --- weights -----------------------------------------------------------------------------------------------

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> weights.Weight:
        return weights.prepare_weight(spec, parts, self._torch_device)

    def weight_bytes(self, weight: weights.Weight) -> int:
        return weights.weight_bytes(weight)

    def linear(
        self, weight: weights.Weight, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return weights.linear(weight, x, bias, out, configuration=self._ops)

    def embed(self, weight: weights.Weight, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        return weights.embed(weight, token_ids, out, configuration=self._ops)

    # --- KV cache ----------------------------------------------------------------------------------------------

    def bytes_per_block(self, spec: KVSpec) -> int:
        return kv_pool.bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> kv_pool.TritonKVPool:
        check_kv(self.capabilities, spec)
        check_memory(spec, num_blocks, self.memory())
        return kv_pool.allocate_kv(spec, num_blocks, self._torch_device)

    def free_kv(self, pool: kv_pool.TritonKVPool) -> None:
        kv_pool.free_kv(pool)

    def write_kv(
        self,
        pool: kv_pool.TritonKVPool,
        layer: int,
        key: Tensor,
        value: Tensor,
        slot_mapping: Tensor,
        params: AttentionParams,
    ) -> None:
        kv_writes.write_kv(pool, layer, key, value, slot_mapping, params, self._attention)

    def copy_blocks(self, pool: kv_pool.TritonKVPool, pairs: Sequence[tuple[int, int]]) -> None:
        block_copies.copy_blocks(pool, pairs, self._attention)

    def export_blocks(self, pool: kv_pool.TritonKVPool, block_ids: Sequence[int], out: Tensor) -> None:
        kv_pool.export_blocks(pool, block_ids, out)

    def import_blocks(self, pool: kv_pool.TritonKVPool, block_ids: Sequence[int], data: Tensor) -> None:
        kv_pool.import_blocks(pool, block_ids, data)

    # --- attention ---------------------------------------------------------------------------------------------

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Any:
        """Return nothing: the kernels read the batch's own tensors."""

    def check_attention(self, spec: KVSpec, num_heads: int, params: AttentionParams) -> None:
        super().check_attention(spec, num_heads, params)
        largest = max(spec.head_size, spec.value_head_size)
        if largest > kv_pool.LARGEST_HEAD:
            raise UnsupportedFeature(
                f"The attention kernels take heads of up to {kv_pool.LARGEST_HEAD} features, and not of {largest}. "
                "Use another backend (pageport backends)."
            )

    def decode_attention(
        self,
        pool: kv_pool.TritonKVPool,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        batch: AttentionBatch,
        out: Tensor,
    ) -> None:
        decode_attention(pool, layer, query, params, batch, out, self._attention)

    def prefill_attention(
        self,
        pool: kv_pool.TritonKVPool,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        batch: AttentionBatch,
        out: Tensor,
    ) -> None:
        prefill_attention(pool, layer, query, params, batch, out, self._attention)

    # --- optional ops ------------------------------------------------------------------------------------------

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None) -> Tensor:
        return norms.rms_norm(x, weight, epsilon, out, configuration=self._ops)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, epsilon: float, out: Tensor | None = None
    ) -> Tensor:
        return norms.add_rms_norm(x, residual, weight, epsilon, out, configuration=self._ops)

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, out: Tensor | None = None
    ) -> Tensor:
        return norms.layer_norm(x, weight, bias, epsilon, out, configuration=self._ops)

    def add(self, x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
        return activations.add(x, y, out, configuration=self._ops)

    def scale(self, x: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
        return activations.scale(x, factor, out, configuration=self._ops)

    def rope(self, query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool) -> None:
        rotations.rope(query, key, positions, cos_sin, interleaved, configuration=self._ops)

    def rope_write_kv(
        self,
        pool: kv_pool.TritonKVPool,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        interleaved: bool,
        slot_mapping: Tensor,
        params: AttentionParams,
    ) -> None:
        kv_writes.rope_write_kv(
            pool,
            layer,
            query,
            key,
            value,
            positions,
            cos_sin,
            interleaved,
            slot_mapping,
            params,
            self._attention,
        )

    def silu_mul(self, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
        return activations.silu_mul(gate_up, out, configuration=self._ops)

    def gelu_mul(self, gate_up: Tensor, tanh: bool, out: Tensor | None = None) -> Tensor:
        return activations.gelu_mul(gate_up, tanh, out, configuration=self._ops)

    def gelu(self, x: Tensor, tanh: bool, out: Tensor | None = None) -> Tensor:
        return activations.gelu(x, tanh, out, configuration=self._ops)

    def softcap(self, x: Tensor, cap: float, out: Tensor | None = None) -> Tensor:
        return activations.softcap(x, cap, out, configuration=self._ops)

    def gather_rows(self, x: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        return row_gathering.gather_rows(x, rows, out, configuration=self._ops)

    def sample(self, logits: Tensor, batch: ChoiceBatch) -> Choice:
        return sampling.sample(logits, batch, configuration=self._ops)
