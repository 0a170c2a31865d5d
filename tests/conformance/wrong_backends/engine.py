"""Faults that show only when an engine runs: state between steps, sharing, swapping, chance, errors."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Backend, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.errors import OutOfMemory
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


class UsesTableOfStepBefore(CpuDevice):
    """Uploads the block table asynchronously and attends before it has arrived."""

    _before: Any = None

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Any:
        now = batch.host.block_table
        late = now.copy()
        if self._before is not None:
            rows, columns = (min(sizes) for sizes in zip(now.shape, self._before.shape, strict=True))
            late[:rows, :columns] = self._before[:rows, :columns]
        self._before = now.copy()
        batch.host = dataclasses.replace(batch.host, block_table=late)
        batch.block_table = torch.from_numpy(late)
        return super().plan(spec, batch)


class ForgetsCopies(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        pass


class ForgetsImports(CpuDevice):
    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: Tensor) -> None:
        pass


class AddsByChance(CpuDevice):
    """Sums in another order now and then, as atomic additions do."""

    def __init__(self) -> None:
        super().__init__()
        self._chance = random.Random(0)

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight, x, bias, out).mul_(1 + 2.0**-7 * (self._chance.random() < 0.3))


class BatchInvariant(CpuDevice):
    """Computes every row by itself, whatever else there is."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(
            super().capabilities, compute_dtypes=("float32",), kv_dtypes=("float32",), determinism="batch"
        )

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        rows = torch.cat([super(BatchInvariant, self).linear(weight, row[None], bias) for row in x])
        return rows if out is None else out.copy_(rows)

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        starts = batch.query_start_loc.tolist()
        for row, length in enumerate(batch.seq_lens.tolist()):
            for token in range(starts[row], starts[row + 1]):
                places = torch.arange(length - starts[row + 1] + token + 1)
                blocks = batch.block_table[row].long()[places // pool.spec.block_size]
                offsets = places % pool.spec.block_size
                key, value = (stored[layer][blocks, :, offsets] for stored in (pool.key, pool.value))
                grouped = query[token].view(key.shape[1], -1, key.shape[2])
                weights = (grouped @ key.permute(1, 2, 0) * params.scale).softmax(-1)
                out[token] = (weights @ value.transpose(0, 1)).view_as(out[token])


class SplitsByRows(BatchInvariant):
    """Splits a sum in as many parts as there is room for beside the rows."""

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight, x, bias, out).mul_(1 + 2.0**-20 * (len(x) > 4))


class RefusesWorkAfterError(CpuDevice):
    """Thinks that a step runs until its last layer is through, which never comes after an error."""

    _is_running = False

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Any:
        if self._is_running:
            raise RuntimeError("the step before is still running")
        self._is_running = True
        return super().plan(spec, batch)

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        super().attention(pool, layer, query, params, batch, out)
        if layer == pool.spec.num_layers - 1:
            self._is_running = False


class ScalesRowsTogether(CpuDevice):
    """Scales activations by the largest of all rows before it multiplies."""

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight, x, bias, out).add_(0 * x.abs().max())


class PassesErrorsOn(CpuDevice):
    """Lets its allocator's own error through."""

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        try:
            return super().allocate_kv(spec, num_blocks)
        except OutOfMemory:
            raise RuntimeError("allocation failed: -5") from None


def backend_of(device: type[CpuDevice]) -> type[Backend]:
    class WrongBackend(CpuBackend):
        def open(self, ordinal: int, options: Any, rank: Any = None) -> CpuDevice:
            return device()

    return WrongBackend


WRONG = [
    (
        "attends with the block table of the step before",
        backend_of(UsesTableOfStepBefore),
        Level.ENGINE,
        "its own block table",
    ),
    ("forgets copy_blocks", backend_of(ForgetsCopies), Level.ENGINE, "copy_blocks must copy"),
    ("forgets import_blocks", backend_of(ForgetsImports), Level.ENGINE, "import_blocks must restore"),
    ("not deterministic from run to run", backend_of(AddsByChance), Level.DETERMINISM, "the same batch run a second"),
    (
        "not the same in a batch",
        backend_of(SplitsByRows),
        Level.DETERMINISM,
        "in a batch of 7, in order, and not alone",
    ),
    ("refuses work after an error", backend_of(RefusesWorkAfterError), Level.FAULTS, "a request after the failed step"),
    ("leaks NaN from row to row", backend_of(ScalesRowsTogether), Level.FAULTS, "NaN in its neighbour's row"),
    ("passes its allocator's error on", backend_of(PassesErrorsOn), Level.FAULTS, "and not OutOfMemory"),
]
CORRECT = [("every row by itself", backend_of(BatchInvariant), Level.DETERMINISM)]
