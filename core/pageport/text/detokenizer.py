"""``IncrementalDetokenizer``: token ids in, whole characters out."""

import codecs
from collections.abc import Iterable, Sequence

from pageport.text.tokenizer import Tokenizer

# Tokens of context that a decoder which puts spaces between tokens is given.
_WINDOW = 4


class IncrementalDetokenizer:
    """Turns the tokens of one output into text as they come.

    Never shows a part of a character, never drops one, and does constant work a token. The pieces, ``flush``
    included, join to what ``Tokenizer.decode`` makes of all the tokens after this prompt. Whether a character is
    complete is told by its bytes: a U+FFFD that the model wrote comes like any other, and bytes that cannot become
    a character are shown as U+FFFD as soon as that is certain.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.all_special_ids if skip_special_tokens else frozenset[int]()
        self._spaces = spaces_between_special_tokens
        self._is_bytewise = tokenizer.is_bytewise
        self._token_bytes = tokenizer.token_bytes
        if self._is_bytewise:
            self._start_bytes(prompt_token_ids)
        else:
            shown = [i for i in prompt_token_ids[-8 * _WINDOW :] if i not in self._skipped]
            self._window = shown[-_WINDOW:]

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens and return the text that is complete with them."""
        shown = [i for i in token_ids if i not in self._skipped]
        if not self._is_bytewise:
            return "".join([self._windowed(i) for i in shown])
        data = b"".join([self._token_bytes(i) for i in shown])
        if not data:
            return ""
        return self._push_first(data) if self._at_start else self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for an incomplete character."""
        if not self._is_bytewise or self._at_start:
            return ""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def _start_bytes(self, prompt_token_ids: Sequence[int]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # A prompt may end within a character that the output completes.
        tail = b""
        for token_id in reversed(prompt_token_ids):
            if token_id not in self._skipped:
                tail = self._token_bytes(token_id) + tail
            if len(tail) >= 4:
                break
        self._prompt_tail = _incomplete_end(tail)
        self._strips_space = self._tokenizer.strips_first_space and not tail
        self._at_start = True

    def _push_first(self, data: bytes) -> str:
        self._at_start = False
        if self._strips_space:
            data = data.removeprefix(b" ")
        # The prompt's text already shows U+FFFD for a character that the output does not continue.
        if self._prompt_tail and _continues(self._prompt_tail, data[:1]):
            data = self._prompt_tail + data
        return self._decoder.decode(data)

    def _windowed(self, token_id: int) -> str:
        before = self._tokenizer.decode(self._window, False, self._spaces)
        after = self._tokenizer.decode([*self._window, token_id], False, self._spaces)
        if after != before:
            self._window = [*self._window, token_id][-_WINDOW:]
        return after[len(before) :]


def _incomplete_end(data: bytes) -> bytes:
    """Return the bytes at the end of ``data`` that begin a character without ending it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bytes(decoder.getstate()[0])


def _continues(begun: bytes, following: bytes) -> bool:
    joined = begun + following
    if _incomplete_end(joined) == joined:
        return True
    try:
        joined.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
