"""``Batch``: one step as plain ints, from the scheduler to the runner; ``StepResult``: what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pageport.cache.block_move import BlockMove as BlockMove


@dataclass(frozen=True, slots=True)
class NewRow:
    """A sequence takes (or takes over) a persistent row of the runner: everything the runner kept there is replaced.

    All but its block table, which ``BlockUpdate`` alone changes; a sequence that is new to a row gets all of it.
    A beam is announced anew in each step, since the search may have chosen another token than the row sampled.
    """

    row: int
    token_ids: list[int]  # prompt and output so far; the runner copies them
    num_prompt_tokens: int
    index: int  # choice index: child of the request's seed
    sampling: Any


class BlockUpdate(NamedTuple):
    """``row``'s block table of cache group ``group`` holds ``block_ids`` from entry ``start`` on.

    -1 where a sliding window has passed: no query looks there.
    """

    row: int
    group: int
    start: int
    block_ids: list[int]


@dataclass(slots=True, kw_only=True)
class Batch:
    """One step.

    The runner applies, in this order: ``swap_out``, ``swap_in``, ``copies``, ``new_rows``, ``block_updates``; then
    runs tokens ``starts[i] … starts[i] + counts[i] - 1`` of the sequence in ``rows[i]``, for every i; then samples.
    Sample k belongs to the sequence in ``sample_rows[k]`` and uses the logits of the last token of entry
    ``sample_sources[k]`` (forked siblings share their parent's logits). A token position at or past what the runner
    knows of a row is the token that row sampled last, which may still be on the device.
    """

    step: int
    rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sample_rows: list[int] = field(default_factory=list)
    sample_sources: list[int] = field(default_factory=list)
    # Entries of `rows` whose every token's prompt logprobs are wanted.
    prompt_logprob_entries: list[int] = field(default_factory=list)
    # Entries of `rows` whose tokens of the prompt are summed up for an embedding.
    pooled_entries: list[int] = field(default_factory=list)
    num_decodes: int = 0  # the first entries are decodes: one token each
    new_rows: list[NewRow] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    copies: list[BlockMove] = field(default_factory=list)
    swap_out: list[BlockMove] = field(default_factory=list)
    swap_in: list[BlockMove] = field(default_factory=list)
    # The scheduler's own: the sequences behind `rows` and `sample_rows`. The runner does not look.
    sequences: list[Any] = field(default_factory=list)
    sample_sequences: list[Any] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(self.counts)


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position: the chosen token first, then the most likely ones, best first.

    ``ranks[i]`` is 1 + the number of tokens that are strictly more likely than ``token_ids[i]``.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What one step produced, on the host, aligned with ``Batch.sample_rows``.

    ``errors`` maps a sample to the reason why its logits are unusable (NaN); its token list is empty.
    ``logprobs[k]`` has one entry a token where the request asked for them, else is None. For a beam it holds the
    most likely candidates. ``prompt_logprobs`` maps an entry of ``Batch.rows`` to one ``TokenLogprobs`` for each of
    its tokens that has a next prompt token (position p scores token p + 1). ``pooled`` maps an entry of
    ``Batch.pooled_entries`` to the sum over its tokens. ``failure``: the device failed and the whole step is void;
    every sequence of the batch ends with this reason.
    """

    token_ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[TokenLogprobs] | None] | None = None
    prompt_logprobs: Mapping[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: Mapping[int, list[float]] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    failure: str | None = None
