"""``NullRunner``: a device without tensors that checks what the scheduler tells it."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pageport.cache.layout import GroupLayout
from pageport.engine.runner import PendingStep, Runner
from pageport.scheduling.batch import Batch, BlockMove, StepResult, TokenLogprobs

_MASK = (1 << 64) - 1


class NullSampling(NamedTuple):
    """What the null model needs to know of a request's sampling parameters."""

    seed: int = 0
    num_candidates: int = 0  # of a beam


class _Sampling(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def num_candidates(self) -> int: ...


def fingerprint(token_ids: Sequence[int], previous: int = 0) -> int:
    """Hash a history, so that equal histories and no others look alike; may be continued from a prefix's value."""
    for token_id in token_ids:
        previous = (previous ^ (token_id + 1)) * 0x9E3779B97F4A7C15 & _MASK
        previous ^= previous >> 29
    return previous


def null_token(history: int, index: int, seed: int, vocab_size: int) -> int:
    """Return the token that the null model samples after a history: it depends on nothing else in the batch."""
    return (fingerprint((index, seed), history) >> 17) % vocab_size


def null_logprobs(history: int, vocab_size: int) -> list[float]:
    """Return the null model's log-probability of every next token."""
    scores = [(fingerprint((token_id,), history) >> 20) % 4096 / 1024 for token_id in range(vocab_size)]
    normalizer = math.log(sum(math.exp(score) for score in scores))
    return [score - normalizer for score in scores]


def null_continuation(
    prompt: Sequence[int],
    *,
    max_tokens: int,
    vocab_size: int,
    index: int = 0,
    seed: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Return what the null model generates after a prompt, without any scheduling."""
    history, output = fingerprint(prompt), list[int]()
    while len(output) < max_tokens:
        token_id = null_token(history, index, seed, vocab_size)
        output.append(token_id)
        if token_id in stop_token_ids:
            break
        history = fingerprint((token_id,), history)
    return output


class NullPending(PendingStep):
    """A step in flight: its values become known in ``result``, ``latency_s`` after the device got to it."""

    def __init__(self, result: StepResult, ready_at: float, clock: Callable[[], float]) -> None:
        self._result = result
        self._ready_at = ready_at
        self._clock = clock

    def result(self) -> StepResult:
        """Wait for the step and return what it produced."""
        wait = self._ready_at - self._clock()
        if wait > 0:
            time.sleep(wait)
        return self._result


class _Row:
    """What the runner keeps of one row: tokens, the fingerprint of every prefix, block tables."""

    def __init__(self, num_groups: int) -> None:
        self.token_ids: list[int] = []
        self.histories: list[int] = []  # histories[p] is the fingerprint of tokens 0 … p
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.sampling: _Sampling = NullSampling()
        self.index = 0
        self.num_prompt_tokens = 0

    def set_tokens(self, token_ids: Sequence[int], start: int) -> None:
        """Replace everything from position ``start`` on."""
        del self.token_ids[start:], self.histories[start:]
        for token_id in token_ids:
            self.token_ids.append(token_id)
            self.histories.append(fingerprint((token_id,), self.histories[-1] if self.histories else 0))


class NullRunner(Runner):
    """Runs batches on a simulated KV memory in which a slot holds (position, fingerprint of the prefix).

    Before an entry samples, every position that its tokens see is looked up through the row's block tables: a wrong,
    missing, overwritten or not yet copied block raises AssertionError. ``verify=False`` only counts, for measuring
    host time; every token is ``token_id`` then. Steps run when submitted, in order, as on a device.
    """

    def __init__(
        self,
        groups: Sequence[GroupLayout],
        *,
        max_num_seqs: int,
        vocab_size: int = 32,
        latency_s: float = 0.0,
        verify: bool = True,
        token_id: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._vocab_size = vocab_size
        self._latency_s = latency_s
        self._verify = verify
        self._token_id = token_id
        self._clock = clock
        self._ready_at = 0.0
        self._rows = [_Row(len(groups)) for _ in range(max_num_seqs)]
        self._memory: list[dict[int, list[tuple[int, int] | None]]] = [{} for _ in groups]
        self._host: list[dict[int, list[tuple[int, int] | None]]] = [{} for _ in groups]
        self.num_tokens_computed = 0
        self.num_blocks_copied = 0

    def submit(self, batch: Batch) -> NullPending:
        """Run one step."""
        assert len(set(batch.rows)) == len(batch.rows), "a row is in one step twice"
        self.num_tokens_computed += batch.num_tokens
        self.num_blocks_copied += sum(len(move.pairs) for move in batch.copies)
        if self._verify:
            self._prepare(batch)
            result = self._run(batch)
        else:
            result = StepResult(token_ids=[[self._token_id]] * len(batch.sample_rows))
        self._ready_at = max(self._ready_at, self._clock()) + self._latency_s
        return NullPending(result, self._ready_at, self._clock)

    def _prepare(self, batch: Batch) -> None:
        self._move(batch.swap_out, self._memory, self._host)
        self._move(batch.swap_in, self._host, self._memory)
        self._move(batch.copies, self._memory, self._memory)
        for new in batch.new_rows:
            row = self._rows[new.row]
            row.set_tokens(new.token_ids, 0)
            row.sampling, row.index, row.num_prompt_tokens = new.sampling, new.index, new.num_prompt_tokens
        for update in batch.block_updates:
            table = self._rows[update.row].tables[update.group]
            assert update.start <= len(table), "a block table has a gap"
            table[update.start : update.start + len(update.block_ids)] = update.block_ids

    def _move(
        self,
        moves: Sequence[BlockMove],
        source: list[dict[int, list[tuple[int, int] | None]]],
        target: list[dict[int, list[tuple[int, int] | None]]],
    ) -> None:
        for move in moves:
            for old, new in move.pairs:
                target[move.group][new] = list(self._block(source, move.group, old))

    def _block(
        self, memory: list[dict[int, list[tuple[int, int] | None]]], group: int, block_id: int
    ) -> list[tuple[int, int] | None]:
        return memory[group].setdefault(block_id, [None] * self._groups[group].block_size)

    def _run(self, batch: Batch) -> StepResult:
        entries = list(zip(batch.rows, batch.starts, batch.counts, strict=True))
        assert all(count == 1 for count in batch.counts[: batch.num_decodes])
        for row_number, start, count in entries:
            self._write(self._rows[row_number], start, count)
        for row_number, start, count in entries:
            self._look_up(self._rows[row_number], start, count)
        token_ids: list[list[int]] = []
        logprobs: list[list[TokenLogprobs] | None] = []
        for row_number, source in zip(batch.sample_rows, batch.sample_sources, strict=True):
            row = self._rows[row_number]
            position = batch.starts[source] + batch.counts[source]
            history = self._rows[batch.rows[source]].histories[position - 1]
            assert row.histories[position - 1] == history, "a sample comes from another history"
            token_id = null_token(history, row.index, row.sampling.seed, self._vocab_size)
            row.set_tokens([token_id], position)
            token_ids.append([token_id])
            candidates = row.sampling.num_candidates
            logprobs.append([self._likeliest(history, token_id, candidates)] if candidates else None)
        scores = {entry: self._prompt_scores(*entries[entry]) for entry in batch.prompt_logprob_entries}
        return StepResult(token_ids=token_ids, logprobs=logprobs, prompt_logprobs=scores)

    def _write(self, row: _Row, start: int, count: int) -> None:
        assert start + count <= len(row.token_ids), "a token is computed before it is known"
        for group, layout in enumerate(self._groups):
            for position in range(start, start + count):
                block_id = row.tables[group][position // layout.block_size]
                assert 0 <= block_id < layout.num_blocks, f"position {position} has no block"
                block = self._block(self._memory, group, block_id)
                block[position % layout.block_size] = (position, row.histories[position])

    def _look_up(self, row: _Row, start: int, count: int) -> None:
        for group, layout in enumerate(self._groups):
            first = 0 if layout.sliding_window is None else max(0, start - layout.sliding_window + 1)
            for position in range(first, start + count):
                block_id = row.tables[group][position // layout.block_size]
                assert block_id >= 0, f"visible position {position} was released"
                found = self._block(self._memory, group, block_id)[position % layout.block_size]
                assert found == (position, row.histories[position]), f"position {position} holds {found}"

    def _likeliest(self, history: int, chosen: int, count: int) -> TokenLogprobs:
        logprobs = null_logprobs(history, self._vocab_size)
        order = sorted(range(self._vocab_size), key=lambda token_id: -logprobs[token_id])
        rank = {token_id: 1 + place for place, token_id in enumerate(order)}
        token_ids = [chosen, *order[:count]]
        return TokenLogprobs(token_ids, [logprobs[t] for t in token_ids], [rank[t] for t in token_ids])

    def _prompt_scores(self, row_number: int, start: int, count: int) -> list[TokenLogprobs]:
        row = self._rows[row_number]
        scores = []
        for position in range(start, min(start + count, row.num_prompt_tokens - 1)):
            next_token = row.token_ids[position + 1]
            logprob = null_logprobs(row.histories[position], self._vocab_size)[next_token]
            scores.append(TokenLogprobs([next_token], [logprob], [0]))
        return scores
