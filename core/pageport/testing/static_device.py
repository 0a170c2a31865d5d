"""``StaticDevice``: the plain-torch reference as a device that compiles whole models, a shape at a time.

It runs on the host and takes no time to compile; what it is for is what it refuses (``CheckedProgram`` and
``StepWatch``). Its ops ``attention`` and ``sample`` are those of its programs, so that the conformance suite judges
these.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.capabilities import Capabilities
from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.program import Bucket, Compilation, ModelProgram
from pageport.backend.reference.kv import ReferenceKVPool
from pageport.backend.reference.static_attention import static_attention
from pageport.backend.reference.static_choose import ChoiceTensors, choose_statically
from pageport.errors import UnsupportedFeature
from pageport.testing.checked_program import ProgramRecord, check_program
from pageport.testing.reference_device import TOTAL_BYTES, ReferenceDevice
from pageport.testing.static_contract import GroupSize
from pageport.testing.watched_program import WatchedProgram


class StaticDevice(ReferenceDevice):
    """Notes compilations and steps; fresh blocks, and the one for padding, hold NaN."""

    def __init__(
        self,
        token_buckets: tuple[int, ...] = (16, 64),
        request_buckets: tuple[int, ...] = (1, 4, 8),
        context_buckets: tuple[int, ...] = (),
    ) -> None:
        self._token_buckets = token_buckets
        self._request_buckets = request_buckets
        self._context_buckets = context_buckets
        self._kv_bytes = 0
        self.records: list[ProgramRecord] = []  # of every program, in the order they were built

    @property
    def capabilities(self) -> Capabilities:
        plain = super().capabilities
        return replace(
            plain,
            compute_dtypes=("float32", "bfloat16"),
            kv_dtypes=("bfloat16", *plain.kv_dtypes),
            mixed_batches=False,
            static_shapes=True,
            token_buckets=self._token_buckets,
            request_buckets=self._request_buckets,
            context_buckets=self._context_buckets,
            features={"whole_model": 1, "op:sample": 1},
        )

    @property
    def compilations(self) -> Sequence[Compilation]:
        return [compilation for record in self.records for compilation in record.compilations]

    def memory(self) -> Memory:
        """Tell what pools take of a fixed size."""
        return Memory(total=TOTAL_BYTES, free=TOTAL_BYTES - self._kv_bytes, reserved_by_this_process=self._kv_bytes)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        pool: ReferenceKVPool = super().allocate_kv(spec, num_blocks)
        for stored in pool.tensors:
            if stored.dtype != torch.int8:
                stored.copy_(torch.full((), torch.nan))
            self._kv_bytes += stored.nbytes
        return pool

    def free_kv(self, pool: Any) -> None:
        self._kv_bytes -= sum(stored.nbytes for stored in pool.tensors)
        super().free_kv(pool)

    def check_attention(self, spec: KVSpec, num_heads: int, params: AttentionParams) -> None:
        super().check_attention(spec, num_heads, params)
        if not params.causal:
            raise UnsupportedFeature("The plain-torch program computes causal attention alone.")

    def attention(
        self,
        pool: Any,
        layer: int,
        query: Float[Tensor, "tokens heads head_size"],
        params: AttentionParams,
        batch: AttentionBatch,
        out: Float[Tensor, "tokens heads value_head_size"],
    ) -> None:
        """Attend as a program does, at once for all requests with equally many queries; padding gets zeros."""
        out.zero_()
        starts, lengths = batch.query_start_loc[:-1].long(), batch.seq_lens.long()
        counts = batch.query_start_loc.diff()
        for count in sorted(set(counts.tolist())):
            requests = ((counts == count) & (lengths > 0)).nonzero().squeeze(1)
            steps = torch.arange(count)
            tokens = (starts[requests, None] + steps).flatten()
            positions = (lengths[requests, None] - count + steps).flatten()
            if len(tokens):
                table, seq_lens = batch.block_table[requests], batch.seq_lens[requests]
                out[tokens] = static_attention(pool, layer, query[tokens], params, table, positions, seq_lens)

    def sample(self, logits: Float[Tensor, "rows vocab"], batch: ChoiceBatch) -> Choice:
        return choose_statically(logits, ChoiceTensors.of(batch))

    def build_model(
        self,
        description: DecoderDescription,
        weights: DecoderWeights,
        pools: Sequence[Any],
        buckets: Sequence[Bucket],
    ) -> ModelProgram:
        program = WatchedProgram(super().build_model(description, weights, pools, buckets))
        checked = check_program(program, buckets, [_size_of(pool) for pool in pools], self.capabilities)
        self.records.append(checked.record)
        return checked


def _size_of(pool: ReferenceKVPool) -> GroupSize:
    # The pool's last block is the one for padding.
    return GroupSize(pool.spec.block_size, pool.key.shape[1] - 1)
