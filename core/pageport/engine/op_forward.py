"""``OpForward``: the decoder op by op, or replayed from graphs, over one ragged step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.engine.forward import Computed, Forward
from pageport.engine.resizable_graph import ResizableGraph
from pageport.engine.step_buffers import DecodeStep, StepBuffers
from pageport.engine.step_graphs import StepGraphs
from pageport.engine.wanted_tokens import WantedTokens
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
        self._graphs: StepGraphs | ResizableGraph | None = None
        self._prompt_graph: ResizableGraph | None = None
        if not replays_graphs:
            return
        decoder.reserve_logits(max_logit_rows)  # prompts are scored in the same buffer, which must not grow then
        if device.capabilities.graphs_resize:
            self._graphs = ResizableGraph(device, self._compute)
            self._prompt_graph = ResizableGraph(device, self._compute)
            return
        self._graphs = StepGraphs(
            device, buffers.decode_step, self._compute, sizes=device.capabilities.graph_sizes, max_rows=max_decodes
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
        self._graphs = self._prompt_graph = None

    def _run(self, batch: Batch, history: Tensor) -> Computed:
        num_requests = len(batch.rows)
        is_decoding = num_requests > 0 and batch.num_decodes == num_requests
        num_rows = self._graphs.padded_size(num_requests) if is_decoding and self._graphs else num_requests
        step = self._buffers.build(batch, history, num_rows - num_requests)
        for spec, attention in zip(self._specs, step.batches, strict=True):
            attention.plan = self._device.plan(spec, attention)
        if is_decoding:
            decodes = DecodeStep(step.inputs, step.batches)
            return _Decoded(self._compute(decodes) if self._graphs is None else self._graphs.run(decodes), num_requests)
        wanted = WantedTokens(batch, step.query_start_loc)
        rows = None if wanted.tokens is None else self._buffers.wanted(wanted.tokens)
        if self._prompt_graph and rows is not None and wanted.are_sampled:
            return _Sampled(self._prompt_graph.run(DecodeStep(step.inputs, step.batches), rows), wanted)
        return _Hidden(self._decoder, wanted, self._decoder.hidden(step.inputs, self._pools, step.batches, rows))

    def _compute(self, step: DecodeStep, wanted: Tensor | None = None) -> Tensor:
        """Return the logits of these tokens; default: of all."""
        return self._decoder.logits(self._decoder.hidden(step.inputs, self._pools, step.batches, wanted))


class _Decoded(Computed):
    """Logits of a step of decodes: nobody asks for more of it."""

    def __init__(self, logits: Tensor, num_requests: int) -> None:
        self._logits = logits[:num_requests]

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        return _pick(self._logits, np.asarray(entries, np.int64))

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._logits[entry : entry + 1][start:stop]

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        raise AssertionError("the hidden states of a decode are wanted by nobody")


class _Sampled(Computed):
    """Logits of a step with prompts of which nobody asks for more."""

    def __init__(self, logits: Tensor, wanted: WantedTokens) -> None:
        self._logits = logits
        self._wanted = wanted

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        return _pick(self._logits, self._wanted.last_rows(entries))

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._logits[self._wanted.rows(entry, start, stop)]

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        raise AssertionError("the hidden states of what is sampled are wanted by nobody")


class _Hidden(Computed):
    """Hidden states of a step with prompts: those of the tokens that somebody reads."""

    def __init__(self, decoder: Decoder, wanted: WantedTokens, hidden: Tensor) -> None:
        self._decoder = decoder
        self._wanted = wanted
        self._hidden = hidden

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        rows = self._wanted.last_rows(entries)
        if np.array_equal(rows, np.arange(len(self._hidden))):
            return self._decoder.logits(self._hidden)
        return self._decoder.logits(self._hidden, torch.from_numpy(rows).to(self._hidden.device, non_blocking=True))

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._decoder.logits(self.hidden(entry, start, stop))

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        return self._hidden[self._wanted.rows(entry, start, stop)]


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


def _pick(logits: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    if np.array_equal(rows, np.arange(len(logits))):
        return logits
    return logits[torch.from_numpy(rows).to(logits.device, non_blocking=True)]


def _part(batch: Batch, entries: slice) -> Batch:
    """Return some entries as a batch of their own: all decodes or none."""
    rows = batch.rows[entries]
    first = entries.start or 0

    def of_part(chosen: Sequence[int]) -> list[int]:
        return [entry - first for entry in chosen if first <= entry < first + len(rows)]

    return replace(
        batch,
        rows=rows,
        starts=batch.starts[entries],
        counts=batch.counts[entries],
        num_decodes=len(rows) if entries.start is None else 0,
        sample_sources=of_part(batch.sample_sources),
        prompt_logprob_entries=of_part(batch.prompt_logprob_entries),
        pooled_entries=of_part(batch.pooled_entries),
    )
