"""``RowEdits``: what one request does to the logits of its row before penalties and filters; few requests do."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from pageport.sampling.grammar import GrammarError
from pageport.sampling.params import LogitsProcessor
from pageport.sampling.row import RowSampling

_MASKED = float("-inf")


class EditError(Exception):
    """What a request asked of its logits cannot be done; says why."""


class LogitsProcessorError(EditError):
    """A request's own logits processor raised or returned something else than logits."""


class _BadWords(NamedTuple):
    """Words of one length: the tokens before the last, and the last."""

    before: Int32[Tensor, "words length_minus_1"]
    last: Int64[Tensor, "words"]


class RowEdits:
    """Grammar, allowed tokens, bad words, min_tokens, logit bias and logits processors of one row, in this order.

    An output that is complete by its grammar ends, whatever allowed tokens, bad words and min_tokens say. Token ids the
    model does not have are ignored: they are never sampled anyway.
    """

    def __init__(self, sampling: RowSampling, vocab_size: int, device: torch.device) -> None:
        params = sampling.params
        self._vocab_size = vocab_size
        self._matcher = None if sampling.grammar is None else sampling.grammar.matcher()
        self._ignores_eos = params.ignore_eos

        def known(token_ids: Iterable[int]) -> Int64[Tensor, "known"]:
            return torch.tensor([i for i in token_ids if i < vocab_size], dtype=torch.int64, device=device)

        self._allowed = None if params.allowed_token_ids is None else known(params.allowed_token_ids)
        words = [word for word in sampling.bad_words_token_ids if word and max(word) < vocab_size]
        self._bad_words: list[_BadWords] = []
        for length in sorted({len(word) for word in words}):
            table = torch.tensor([word for word in words if len(word) == length], dtype=torch.int64, device=device)
            self._bad_words.append(_BadWords(table[:, :-1].to(torch.int32), table[:, -1]))
        self._min_tokens = params.min_tokens
        self._stop_token_ids = known(sorted(sampling.stop_token_ids))
        bias = params.logit_bias or {}
        self._bias_ids = known(bias)
        self._bias = torch.tensor([bias[i] for i in self._bias_ids.tolist()], dtype=torch.float32, device=device)
        self._processors: tuple[LogitsProcessor, ...] = tuple(params.logits_processors or ())

    @staticmethod
    def are_needed(sampling: RowSampling) -> bool:
        """Does this request edit logits at all?"""
        params = sampling.params
        return (
            sampling.grammar is not None
            or params.allowed_token_ids is not None
            or bool(sampling.bad_words_token_ids)
            or (params.min_tokens > 0 and bool(sampling.stop_token_ids))
            or bool(params.logit_bias)
            or bool(params.logits_processors)
        )

    def apply(self, logits: Float32[Tensor, "vocab"], output_token_ids: Int32[Tensor, "length"]) -> None:
        """Edit ``logits`` in place, given the tokens generated so far.

        Raises:
            EditError: with the reason; ``logits`` then lack that edit and the later ones.
        """
        if not self._follow_grammar(logits, output_token_ids):
            self._mask_tokens(logits, output_token_ids)
        if self._bias_ids.numel():
            logits.index_add_(0, self._bias_ids, self._bias)
        for processor in self._processors:
            logits.copy_(_processed(processor, logits, output_token_ids))

    def _follow_grammar(self, logits: Tensor, output_token_ids: Tensor) -> bool:
        """Mask what the grammar forbids, if there is one; return whether the output is complete."""
        if self._matcher is None:
            return False
        length = output_token_ids.shape[0]
        try:
            self._matcher.advance(output_token_ids[self._matcher.num_consumed :].tolist())
            may_end = length >= self._min_tokens and not self._ignores_eos
            mask = self._matcher.allowed(self._vocab_size, may_end=may_end)
        except GrammarError as error:
            raise EditError(f"The structured output cannot go on: {error}.") from error
        logits.masked_fill_(torch.from_numpy(~mask).to(logits.device), _MASKED)
        return self._matcher.is_complete(mask)

    def _mask_tokens(self, logits: Tensor, output_token_ids: Tensor) -> None:
        if self._allowed is not None:
            allowed = logits[self._allowed]
            logits.fill_(_MASKED)
            logits[self._allowed] = allowed
        self._mask_bad_words(logits, output_token_ids)
        if output_token_ids.shape[0] < self._min_tokens:
            logits.index_fill_(0, self._stop_token_ids, _MASKED)

    def _mask_bad_words(self, logits: Tensor, output_token_ids: Tensor) -> None:
        length = output_token_ids.shape[0]
        for before, last in self._bad_words:
            num_before = before.shape[1]
            if num_before == 0:
                logits.index_fill_(0, last, _MASKED)
            elif num_before <= length:
                is_next = (before == output_token_ids[length - num_before :]).all(dim=-1)
                # Adding lets a token that ends several words be masked by any of them.
                logits.index_add_(0, last, torch.where(is_next, _MASKED, 0.0))


def _processed(processor: LogitsProcessor, logits: Tensor, output_token_ids: Tensor) -> Tensor:
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        result = processor(output_token_ids.tolist(), logits.clone())
    except Exception as error:  # a user's code may raise anything; it becomes this row's error
        raise LogitsProcessorError(f"logits processor {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(result, Tensor) or result.shape != logits.shape or not result.is_floating_point():
        shown = f"{result.dtype} {list(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
        raise LogitsProcessorError(
            f"logits processor {name} returned {shown}; it must return float logits of shape {list(logits.shape)}."
        )
    return result
