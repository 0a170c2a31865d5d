"""``ModelRunner``: turns a ``Batch`` of plain ints into tensors, runs the model and samples."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.engine.forward import Computed, Forward, lengths_after
from pageport.engine.kv_pools import KVPools
from pageport.engine.runner import PendingStep, Runner
from pageport.sampling.batch import SamplingBatch
from pageport.sampling.logprobs import prompt_logprobs, token_logprobs
from pageport.sampling.pooling import Pooling
from pageport.sampling.rows import SamplingRows
from pageport.sampling.sampler import Choose, SamplerOutput, sample
from pageport.scheduling.batch import Batch, StepResult, TokenLogprobs

# Rows of prompt logits computed at once: bounds their memory at this many vocabularies.
PROMPT_LOGITS_ROWS = 256


class ModelRunner(Runner):
    """Owns the token history, the sampling parameters and the host's side of the KV pools of one model on one device.

    ``history[row, p]`` is token p of the sequence in that persistent row. Prompts are written when a row is taken,
    sampled tokens by the sampler, so a step in flight hands its tokens to the next without the host.
    """

    def __init__(
        self,
        forward: Forward,
        device: Device,
        pools: KVPools,
        *,
        max_num_seqs: int,
        max_model_len: int,
        vocab_size: int,
        choose: Choose,
        where: torch.device,
    ) -> None:
        """Allocate the history.

        Args:
            forward: computes over ``pools``, which the runner frees in the end.
            choose: the device's op ``sample``.
            where: tokens are kept and sampled; a device of compiled programs alone leaves that to the host.
        """
        self._forward = forward
        self._device = device
        self._pools = pools
        self._history = torch.zeros((max_num_seqs, max_model_len + 1), dtype=torch.int32, device=where)
        self._choose = choose
        self._sampling = SamplingRows(max_num_seqs, vocab_size, where)
        self._scored_prompts: dict[int, _ScoredPrompt] = {}
        self._pooled_prompts: dict[int, _PooledPrompt] = {}

    @torch.inference_mode()
    def submit(self, batch: Batch) -> PendingStep:
        self._pools.move_blocks(batch)
        self._take_rows(batch)
        sampling, lengths = None, None
        if batch.sample_rows:
            lengths = lengths_after(batch)[batch.sample_sources]
            sampling = self._sampling.gather(batch.sample_rows, lengths.tolist(), self._history)
        computed = self._forward.run(batch, self._history, sampling)
        prompt_scores = self._score_prompts(batch, computed)
        pooled = self._pool(batch, computed)
        if sampling is None or lengths is None:
            return _Pending(None, prompt_scores, pooled)
        output = self._sample(batch, computed, sampling)
        self._append_tokens(batch.sample_rows, lengths, output.token_ids)
        # Starts to bring to the host what was sampled.
        return _Pending(output.start_fetching(self._device.fetch), prompt_scores, pooled)

    def close(self) -> None:
        if self._pools.is_closed:
            return
        self._device.synchronize()  # a step in flight may still use the pools
        self._forward.close()
        self._pools.close()
        # The weights and buffers go with the references to them.
        del self._forward, self._history, self._sampling

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

    def _sample(self, batch: Batch, computed: Computed, sampling: SamplingBatch) -> SamplerOutput:
        if computed.choice is not None:
            return SamplerOutput(token_ids=computed.choice.token_ids, peaks=computed.choice.peaks)
        entries = list(dict.fromkeys(batch.sample_sources))
        logits = computed.last_logits(entries)
        if entries != batch.sample_sources:  # siblings share their parent's
            place = {entry: i for i, entry in enumerate(entries)}
            places = torch.tensor([place[s] for s in batch.sample_sources])
            logits = logits[places.to(logits.device, non_blocking=True)]
        return sample(logits, sampling, self._choose)

    def _append_tokens(self, rows: Sequence[int], lengths: npt.NDArray[np.int64], token_ids: Tensor) -> None:
        """Write each row's next token behind the ``lengths`` it has."""
        if self._history.is_cpu:  # numpy's indexing costs a step less
            self._history.numpy()[rows, lengths] = token_ids.numpy()
            return
        where = self._history.device
        # One upload, which the host does not wait for.
        places = torch.from_numpy(np.stack((np.asarray(rows, np.int64), lengths))).to(where, non_blocking=True)
        self._history[places[0], places[1]] = token_ids.to(torch.int32)

    def _score_prompts(self, batch: Batch, computed: Computed) -> dict[int, list[TokenLogprobs]]:
        scores: dict[int, list[TokenLogprobs]] = {}
        for entry in batch.prompt_logprob_entries:
            row, start = batch.rows[entry], batch.starts[entry]
            num_logprobs, num_prompt_tokens = self._scored_prompts[row]
            count = min(batch.counts[entry], num_prompt_tokens - 1 - start)
            scores[entry] = []
            for offset in range(0, count, PROMPT_LOGITS_ROWS):
                stop = min(count, offset + PROMPT_LOGITS_ROWS)
                next_tokens = self._history[row, start + offset + 1 : start + stop + 1].tolist()
                scores[entry] += prompt_logprobs(computed.logits(entry, offset, stop), next_tokens, num_logprobs)
        return scores

    def _pool(self, batch: Batch, computed: Computed) -> dict[int, Tensor]:
        """Sum up, in float64, what each pooled entry's prompt asks for of its positions in this step."""
        sums: dict[int, Tensor] = {}
        for entry in batch.pooled_entries:
            start = batch.starts[entry]
            pooling, num_prompt_tokens = self._pooled_prompts[batch.rows[entry]]
            stop = min(batch.counts[entry], num_prompt_tokens - start)
            first = max(0, num_prompt_tokens - 1 - start) if pooling == "last" else 0
            sums[entry] = computed.hidden(entry, first, stop).double().sum(dim=0)
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
