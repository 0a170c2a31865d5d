"""``ModelRunner``: turns a ``Batch`` of plain ints into tensors, runs the model and samples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.cache.layout import GroupLayout
from pageport.engine.runner import PendingStep, Runner
from pageport.engine.step_buffers import DecodeStep, Step, StepBuffers
from pageport.engine.step_graphs import StepGraphs
from pageport.models.decoder import Decoder
from pageport.sampling.logprobs import prompt_logprobs, token_logprobs
from pageport.sampling.pooling import Pooling
from pageport.sampling.rows import SamplingRows
from pageport.sampling.sampler import Choose, SamplerOutput, sample
from pageport.scheduling.batch import Batch, StepResult, TokenLogprobs

# Rows of prompt logits computed at once: bounds their memory at this many vocabularies.
PROMPT_LOGITS_ROWS = 256


class ModelRunner(Runner):
    """Owns the KV pools, the token history and the persistent buffers of one model on one device.

    ``history[row, p]`` is token p of the sequence in that persistent row. Prompts are written when a row is taken,
    sampled tokens by the sampler, so a step in flight hands its tokens to the next without the host.
    """

    def __init__(
        self,
        decoder: Decoder,
        device: Device,
        specs: Sequence[KVSpec],
        groups: Sequence[GroupLayout],
        *,
        max_num_seqs: int,
        max_tokens: int,
        max_model_len: int,
        vocab_size: int,
        pipeline_depth: int,
        choose: Choose,
        replays_graphs: bool = False,
    ) -> None:
        """Allocate the pools and the buffers.

        Args:
            choose: the device's op ``sample``.
            replays_graphs: decode steps are captured and replayed; the device declares ``graph``.
        """
        where = device.torch_device
        self._decoder = decoder
        self._device = device
        self._specs = specs
        self._pools = [device.allocate_kv(s, g.num_blocks) for s, g in zip(specs, groups, strict=True)]
        self._host_pools = [
            torch.empty((g.num_host_blocks, device.bytes_per_block(s)), dtype=torch.uint8)
            for s, g in zip(specs, groups, strict=True)
        ]
        self._history = torch.zeros((max_num_seqs, max_model_len + 1), dtype=torch.int32, device=where)
        self._choose = choose
        self._sampling = SamplingRows(max_num_seqs, vocab_size, where)
        self._scored_prompts: dict[int, _ScoredPrompt] = {}
        self._pooled_prompts: dict[int, _PooledPrompt] = {}
        self._buffers = StepBuffers(
            groups,
            max_num_seqs=max_num_seqs,
            max_tokens=max_tokens,
            max_model_len=max_model_len,
            device=where,
            num_stages=pipeline_depth + 1,
        )
        self._graphs: StepGraphs | None = None
        if replays_graphs:
            # Prompts are scored in the same buffer, which must not grow then.
            decoder.reserve_logits(max(max_num_seqs, PROMPT_LOGITS_ROWS))
            self._graphs = StepGraphs(
                device,
                self._buffers.decode_step,
                self._decode,
                sizes=device.capabilities.graph_sizes,
                max_rows=min(max_num_seqs, max_tokens),
            )

    @torch.inference_mode()
    def submit(self, batch: Batch) -> PendingStep:
        self._move_blocks(batch)
        self._take_rows(batch)
        self._buffers.update_tables(batch.block_updates)
        num_requests = len(batch.rows)
        is_decoding = num_requests > 0 and batch.num_decodes == num_requests
        num_rows = self._graphs.padded_size(num_requests) if is_decoding and self._graphs else num_requests
        step = self._buffers.build(batch, self._history, num_rows - num_requests)
        for spec, attention in zip(self._specs, step.batches, strict=True):
            attention.plan = self._device.plan(spec, attention)
        if is_decoding:
            decodes = DecodeStep(step.inputs, step.batches)
            logits = self._decode(decodes) if self._graphs is None else self._graphs.run(decodes)
            return self._pending(self._sample(batch, step, logits[:num_requests], range(num_requests)), {}, {})
        hidden = self._decoder.hidden(step.inputs, self._pools, step.batches)
        prompt_scores = self._score_prompts(batch, step, hidden)
        pooled = self._pool(batch, step, hidden)
        sources = list(dict.fromkeys(batch.sample_sources))
        if not sources:
            return self._pending(None, prompt_scores, pooled)
        logits = self._last_logits(step, hidden, sources)
        return self._pending(self._sample(batch, step, logits, sources), prompt_scores, pooled)

    def close(self) -> None:
        if not self._pools:
            return
        self._device.synchronize()  # a step in flight may still use the pools
        self._graphs = None
        for pool in self._pools:
            self._device.free_kv(pool)
        # The weights and buffers go with the references to them.
        self._pools, self._host_pools = [], []
        del self._decoder, self._history, self._sampling, self._buffers

    def _move_blocks(self, batch: Batch) -> None:
        for group, pairs in batch.swap_out:
            saved = self._host_pools[group].new_empty((len(pairs), self._host_pools[group].shape[1]))
            self._device.export_blocks(self._pools[group], [source for source, _ in pairs], saved)
            self._host_pools[group][[target for _, target in pairs]] = saved
        for group, pairs in batch.swap_in:
            data = self._host_pools[group][[source for source, _ in pairs]]
            self._device.import_blocks(self._pools[group], [target for _, target in pairs], data)
        for group, pairs in batch.copies:
            self._device.copy_blocks(self._pools[group], pairs)

    def _take_rows(self, batch: Batch) -> None:
        for new in batch.new_rows:
            tokens = torch.tensor(new.token_ids, dtype=torch.int32)
            self._history[new.row, : len(new.token_ids)].copy_(tokens, non_blocking=True)
            self._sampling.set_row(new.row, new.sampling, new.index, new.num_prompt_tokens)
            num_logprobs = new.sampling.params.prompt_logprobs
            if num_logprobs is not None:
                self._scored_prompts[new.row] = _ScoredPrompt(num_logprobs, new.num_prompt_tokens)
            if new.sampling.params.pooling is not None:
                self._pooled_prompts[new.row] = _PooledPrompt(new.sampling.params.pooling, new.num_prompt_tokens)

    def _decode(self, step: DecodeStep) -> Tensor:
        """Return the logits of every request."""
        return self._decoder.logits(self._decoder.hidden(step.inputs, self._pools, step.batches))

    def _last_logits(self, step: Step, hidden: Tensor, entries: list[int]) -> Tensor:
        """Return the logits of the last token of each of these entries."""
        last_tokens = step.query_start_loc[1:][entries].astype("int64") - 1
        return self._decoder.logits(hidden, torch.from_numpy(last_tokens).to(hidden.device, non_blocking=True))

    def _sample(self, batch: Batch, step: Step, logits: Tensor, entries: Sequence[int]) -> SamplerOutput | None:
        """Sample from ``logits``, whose rows belong to ``entries``."""
        if not batch.sample_rows:
            return None
        where = self._history.device
        if list(entries) != batch.sample_sources:
            place = {entry: i for i, entry in enumerate(entries)}
            places = torch.tensor([place[s] for s in batch.sample_sources])
            logits = logits[places.to(where, non_blocking=True)]
        lengths = step.seq_lens[batch.sample_sources]
        sampling = self._sampling.gather(batch.sample_rows, lengths.tolist(), self._history)
        output = sample(logits, sampling, self._choose)
        self._append_tokens(batch.sample_rows, lengths, output.token_ids)
        return output

    def _append_tokens(self, rows: Sequence[int], lengths: npt.NDArray[np.int32], token_ids: Tensor) -> None:
        """Write each row's next token behind the ``lengths`` it has."""
        if self._history.is_cpu:  # numpy's indexing costs a step less
            self._history.numpy()[rows, lengths] = token_ids.numpy()
            return
        where = self._history.device
        # One upload, which the host does not wait for.
        places = torch.from_numpy(np.stack((np.asarray(rows, np.int64), lengths))).to(where, non_blocking=True)
        self._history[places[0], places[1]] = token_ids.to(torch.int32)

    def _pending(
        self,
        output: SamplerOutput | None,
        prompt_scores: dict[int, list[TokenLogprobs]],
        pooled: dict[int, Tensor],
    ) -> "_Pending":
        """Start to bring what was sampled to the host, and return who waits for it."""
        fetched = None if output is None else output.start_fetching(self._device.fetch)
        return _Pending(fetched, prompt_scores, pooled)

    def _score_prompts(self, batch: Batch, step: Step, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        scores: dict[int, list[TokenLogprobs]] = {}
        for entry in batch.prompt_logprob_entries:
            row, start, first = batch.rows[entry], batch.starts[entry], int(step.query_start_loc[entry])
            num_logprobs, num_prompt_tokens = self._scored_prompts[row]
            count = min(batch.counts[entry], num_prompt_tokens - 1 - start)
            scores[entry] = []
            for offset in range(0, count, PROMPT_LOGITS_ROWS):
                stop = min(count, offset + PROMPT_LOGITS_ROWS)
                positions = torch.arange(first + offset, first + stop, device=hidden.device)
                next_tokens = self._history[row, start + offset + 1 : start + stop + 1].tolist()
                logits = self._decoder.logits(hidden, positions)
                scores[entry] += prompt_logprobs(logits, next_tokens, num_logprobs)
        return scores

    def _pool(self, batch: Batch, step: Step, hidden: Tensor) -> dict[int, Tensor]:
        """Sum up, in float64, what each pooled entry's prompt asks for of its positions in this step."""
        sums: dict[int, Tensor] = {}
        for entry in batch.pooled_entries:
            start, first = batch.starts[entry], int(step.query_start_loc[entry])
            pooling, num_prompt_tokens = self._pooled_prompts[batch.rows[entry]]
            stop = first + min(batch.counts[entry], num_prompt_tokens - start)
            if pooling == "last":
                first = max(first, first + num_prompt_tokens - 1 - start)
            sums[entry] = hidden[first:stop].double().sum(dim=0)
        return sums


class _Pending(PendingStep):
    def __init__(
        self,
        fetched: Callable[[], SamplerOutput] | None,
        prompt_scores: dict[int, list[TokenLogprobs]],
        pooled: dict[int, Tensor],
    ) -> None:
        self._fetched = fetched
        self._prompt_scores = prompt_scores
        self._pooled = pooled

    def result(self) -> StepResult:
        pooled = {entry: vector.tolist() for entry, vector in self._pooled.items()}
        if self._fetched is None:
            return StepResult(token_ids=[], prompt_logprobs=self._prompt_scores, pooled=pooled)
        output = self._fetched()
        tokens, errors = output.token_ids.tolist(), output.errors()
        scored = token_logprobs(output.logprobs, len(tokens)) if output.logprobs else []
        return StepResult(
            token_ids=[[] if k in errors else [token] for k, token in enumerate(tokens)],
            logprobs=[None if entry is None else [entry] for entry in scored] or None,
            errors=errors,
            prompt_logprobs=self._prompt_scores,
            pooled=pooled,
        )


class _PooledPrompt(NamedTuple):
    """A row whose prompt's hidden states are wanted."""

    pooling: Pooling
    num_prompt_tokens: int


class _ScoredPrompt(NamedTuple):
    """A row whose prompt's logprobs are wanted."""

    num_logprobs: int
    num_prompt_tokens: int
