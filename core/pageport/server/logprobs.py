"""Logprobs as each endpoint shows them."""

import codecs
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pageport.engine.outputs import ChoiceDelta, Logprob
from pageport.server.protocol.chat import TokenLogprob, TopLogprob
from pageport.server.protocol.common import GenerationFields, PromptLogprob, PromptLogprobs
from pageport.server.protocol.completions import CompletionLogprobs, CompletionRequest
from pageport.text.tokenizer import Tokenizer

# JSON has no -inf; OpenAI's own stand-in for a token that cannot come.
LOWEST_LOGPROB = -9999.0


class ScoredToken(NamedTuple):
    """One token and the candidates at its position, itself among them; no candidates at a prompt's first position."""

    token_id: int
    candidates: Mapping[int, Logprob] | None


class ScoredTokens:
    """Releases the scored tokens of one choice along with their text.

    The token that ended the choice is not shown when it is no text. With stop strings, text that may become one is
    withheld, and what does become one is cut off: their tokens are treated alike.
    """

    def __init__(self, tokenizer: Tokenizer, body: GenerationFields) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids(tokenizer, body)
        self._withholds = bool(body.stop) and not body.include_stop_str_in_output
        self._held: deque[ScoredToken] = deque()
        self._num_text_bytes = 0  # of the choice so far
        self._num_token_bytes = 0  # of the tokens released so far

    def release(self, delta: ChoiceDelta) -> list[ScoredToken]:
        """Take in ``delta`` and return the tokens whose text is out."""
        self._held.extend(map(ScoredToken, delta.token_ids, delta.logprobs or ()))
        self._num_text_bytes += len(delta.text.encode())
        is_cut = isinstance(delta.stop_reason, str)
        if delta.finish_reason == "stop" and not is_cut:
            self._drop_end_token(delta)
        if self._withholds and (is_cut or delta.finish_reason is None):
            return self._release_covered(partly=is_cut)
        released = list(self._held)
        self._held.clear()
        return released

    def _drop_end_token(self, delta: ChoiceDelta) -> None:
        # Without a reason it was the model's own end token; one that the user named is text, unless it is special.
        if self._held and (delta.stop_reason is None or delta.stop_reason in self._hidden_ids):
            self._held.pop()

    def _release_covered(self, *, partly: bool) -> list[ScoredToken]:
        """Release tokens whose bytes are all out or, at a cut, of which some are."""
        released: list[ScoredToken] = []
        while self._held:
            token_id = self._held[0].token_id
            shown = b"" if token_id in self._hidden_ids else self._tokenizer.token_bytes(token_id)
            end = self._num_token_bytes + len(shown)
            reached = self._num_token_bytes < self._num_text_bytes if partly else end <= self._num_text_bytes
            if not reached:
                break
            self._num_token_bytes = end
            released.append(self._held.popleft())
        return released


class CompletionColumns:
    """Builds the columns of ``/v1/completions`` for one choice; ``text_offset`` counts on from call to call."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest) -> None:
        self._tokenizer = tokenizer
        self._num_top = body.logprobs or 0
        self._hidden_ids = hidden_ids(tokenizer, body)
        self._offset = 0  # characters
        # A character counts once its last byte is there.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def echoed(self, tokens: Sequence[ScoredToken], text: str) -> CompletionLogprobs:
        """Format the prompt's tokens. Special tokens that the tokenizer added are not in the prompt's ``text``."""
        columns = _empty_columns()
        data = text.encode()
        position = 0
        for token in tokens:
            piece = self._tokenizer.token_bytes(token.token_id)
            if token.token_id in self._tokenizer.all_special_ids and not data.startswith(piece, position):
                piece = b""
            if position == 0 and self._tokenizer.strips_first_space and not data.startswith(piece):
                piece = piece.removeprefix(b" ")
            position += len(piece)
            self._append(columns, token, piece)
        # What follows stands after the whole prompt, also where the prompt's tokens spell it otherwise.
        self._offset = len(text)
        self._decoder.reset()
        return columns

    def generated(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
        """Format the choice's next tokens."""
        columns = _empty_columns()
        for token in tokens:
            is_hidden = token.token_id in self._hidden_ids
            self._append(columns, token, b"" if is_hidden else self._tokenizer.token_bytes(token.token_id))
        return columns

    def _append(self, columns: CompletionLogprobs, token: ScoredToken, shown: bytes) -> None:
        columns.text_offset.append(self._offset)
        self._offset += len(self._decoder.decode(shown))
        columns.tokens.append(token_text(self._tokenizer, token.token_id))
        if token.candidates is None:
            columns.token_logprobs.append(None)
            columns.top_logprobs.append(None)
            return
        columns.token_logprobs.append(_finite(token.candidates[token.token_id]))
        columns.top_logprobs.append(
            {
                token_text(self._tokenizer, token_id): _finite(candidate)
                for token_id, candidate in _best_first(token.candidates)
                if token_id == token.token_id or _is_top(candidate, self._num_top)
            }
        )


def join_columns(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Put the chunks of one choice together."""
    return CompletionLogprobs(
        text_offset=[value for part in parts for value in part.text_offset],
        token_logprobs=[value for part in parts for value in part.token_logprobs],
        tokens=[value for part in parts for value in part.tokens],
        top_logprobs=[value for part in parts for value in part.top_logprobs],
    )


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[ScoredToken], num_top: int) -> list[TokenLogprob]:
    """Format tokens for ``/v1/chat/completions``: bytes are those of the token, whole characters or not."""
    return [
        TokenLogprob(
            token=token_text(tokenizer, token_id),
            logprob=_finite(candidates[token_id]),
            bytes=list(tokenizer.token_bytes(token_id)),
            top_logprobs=[
                TopLogprob(
                    token=token_text(tokenizer, candidate_id),
                    logprob=_finite(candidate),
                    bytes=list(tokenizer.token_bytes(candidate_id)),
                )
                for candidate_id, candidate in _best_first(candidates)
                if _is_top(candidate, num_top)
            ],
        )
        for token_id, candidates in tokens
        if candidates is not None
    ]


def prompt_logprobs(positions: Sequence[Mapping[int, Logprob] | None]) -> PromptLogprobs:
    """Format the ``prompt_logprobs`` extension: candidates by token id."""
    return [
        None
        if candidates is None
        else {
            token_id: PromptLogprob(
                logprob=_finite(candidate), rank=candidate.rank, decoded_token=candidate.decoded_token
            )
            for token_id, candidate in candidates.items()
        }
        for candidates in positions
    ]


def hidden_ids(tokenizer: Tokenizer, body: GenerationFields) -> frozenset[int]:
    """Return the tokens that are left out of the generated text."""
    return frozenset() if body.skip_special_tokens is False else tokenizer.all_special_ids


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """Show a token: its text, or ``bytes:\\xf0\\x9f`` when its bytes alone are no text, so that no two look alike."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _empty_columns() -> CompletionLogprobs:
    return CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])


def _best_first(candidates: Mapping[int, Logprob]) -> list[tuple[int, Logprob]]:
    return sorted(candidates.items(), key=lambda item: -item[1].logprob)


def _is_top(candidate: Logprob, num_top: int) -> bool:
    return candidate.rank is not None and candidate.rank <= num_top


def _finite(candidate: Logprob) -> float:
    return max(candidate.logprob, LOWEST_LOGPROB)
