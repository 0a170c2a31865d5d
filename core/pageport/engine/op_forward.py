"""``OpForward``: the decoder op by op, or replayed from graphs, over one ragged step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.engine.forward import Computed, Forward
from pageport.engine.step_buffers import DecodeStep, Step, StepBuffers
from pageport.engine.step_graphs import StepGraphs
from pageport.models.decoder import Decoder
from pageport.sampling.batch import SamplingBatch
from pageport.scheduling.batch import Batch


class OpForward(Forward):
    """Runs every entry of a batch in one step; in two where the device does not mix prompts with decodes."""

    def __init__(
        self,
        decoder: Decoder,
        device: Device,
        specs: Sequence[KVSpec],
        pools: Sequence[Any],
        buffers: StepBuffers,
        *,
        max_logit_rows: int,
        max_decodes: int,
        replays_graphs: bool,
    ) -> None:
        """Bind the decoder to its pools and buffers.

        Args:
            max_logit_rows: most rows of logits that are asked for at once.
            max_decodes: most decodes of a step.
            replays_graphs: decode steps are captured and replayed; the device declares ``graph``.
        """
        self._decoder = decoder
        self._device = device
        self._specs = specs
        self._pools = pools
        self._buffers = buffers
        self._mixes = device.capabilities.mixed_batches
        self._graphs: StepGraphs | None = None
        if replays_graphs:
            decoder.reserve_logits(max_logit_rows)  # prompts are scored in the same buffer, which must not grow then
            self._graphs = StepGraphs(
                device,
                buffers.decode_step,
                self._decode,
                sizes=device.capabilities.graph_sizes,
                max_rows=max_decodes,
            )

    def run(self, batch: Batch, history: Tensor, sampling: SamplingBatch | None) -> Computed:
        self._buffers.update_tables(batch.block_updates)
        num_decodes = batch.num_decodes
        if self._mixes or not 0 < num_decodes < len(batch.rows):
            return self._run(batch, history)
        decodes = self._run(_part(batch, slice(num_decodes)), history)
        # The buffer it lies in is needed for the prompts.
        logits = decodes.last_logits(range(num_decodes)).clone()
        return _InTwo(logits, self._run(_part(batch, slice(num_decodes, None)), history))

    def close(self) -> None:
        self._graphs = None

    def _run(self, batch: Batch, history: Tensor) -> Computed:
        num_requests = len(batch.rows)
        is_decoding = num_requests > 0 and batch.num_decodes == num_requests
        num_rows = self._graphs.padded_size(num_requests) if is_decoding and self._graphs else num_requests
        step = self._buffers.build(batch, history, num_rows - num_requests)
        for spec, attention in zip(self._specs, step.batches, strict=True):
            attention.plan = self._device.plan(spec, attention)
        if is_decoding:
            decodes = DecodeStep(step.inputs, step.batches)
            return _Decoded(self._decode(decodes) if self._graphs is None else self._graphs.run(decodes), num_requests)
        return _Hidden(self._decoder, step, self._decoder.hidden(step.inputs, self._pools, step.batches))

    def _decode(self, step: DecodeStep) -> Tensor:
        """Return the logits of every request."""
        return self._decoder.logits(self._decoder.hidden(step.inputs, self._pools, step.batches))


class _Decoded(Computed):
    """Logits of a step of decodes: nobody asks for more of it."""

    def __init__(self, logits: Tensor, num_requests: int) -> None:
        self._logits = logits[:num_requests]

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        if list(entries) == list(range(len(self._logits))):
            return self._logits
        return self._logits[torch.tensor(list(entries)).to(self._logits.device, non_blocking=True)]

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._logits[entry : entry + 1][start:stop]

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        raise AssertionError("the hidden states of a decode are wanted by nobody")


class _Hidden(Computed):
    """Hidden states of a step with prompts."""

    def __init__(self, decoder: Decoder, step: Step, hidden: Tensor) -> None:
        self._decoder = decoder
        self._starts = step.query_start_loc
        self._hidden = hidden

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        last_tokens = self._starts[1:][list(entries)].astype("int64") - 1
        rows = torch.from_numpy(last_tokens).to(self._hidden.device, non_blocking=True)
        return self._decoder.logits(self._hidden, rows)

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        first = int(self._starts[entry])
        rows = torch.arange(first + start, first + stop, device=self._hidden.device)
        return self._decoder.logits(self._hidden, rows)

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        first = int(self._starts[entry])
        return self._hidden[first + start : first + stop]


class _InTwo(Computed):
    """Decodes, whose logits are kept, and the prompts that came after them."""

    def __init__(self, decode_logits: Tensor, prompts: Computed) -> None:
        self._decode_logits = decode_logits
        self._prompts = prompts

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        num_decodes = len(self._decode_logits)
        places = [entry for entry in entries if entry < num_decodes]
        prompts = [entry - num_decodes for entry in entries if entry >= num_decodes]
        decoded = self._decode_logits[torch.tensor(places, dtype=torch.int64).to(self._decode_logits.device)]
        if not prompts:
            return decoded
        both = torch.cat((decoded, self._prompts.last_logits(prompts)))
        in_order = sorted(range(len(entries)), key=lambda k: (entries[k] >= num_decodes, k))
        back = torch.empty(len(entries), dtype=torch.int64)
        back[in_order] = torch.arange(len(entries))
        return both[back.to(both.device)]

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._prompts.logits(entry - len(self._decode_logits), start, stop)

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        return self._prompts.hidden(entry - len(self._decode_logits), start, stop)


def _part(batch: Batch, entries: slice) -> Batch:
    """Return some entries as a batch of their own: all decodes or none."""
    rows = batch.rows[entries]
    return replace(
        batch,
        rows=rows,
        starts=batch.starts[entries],
        counts=batch.counts[entries],
        num_decodes=len(rows) if entries.start is None else 0,
    )
