"""``Grammar``: a compiled constraint over a model's vocabulary; ``GrammarMatcher``: one output on its way through it.

llguidance is imported when the first grammar is compiled.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageport.sampling.grammar_source import grammar_limits, grammar_text
from pageport.sampling.structured import StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLMatcher

# A step waits so long for one mask; most take far less than a millisecond.
MASK_TIMEOUT_S = 1.0

Mask = npt.NDArray[np.bool_]


class GrammarError(Exception):
    """A grammar does not compile, or a step of it cannot be computed; says why."""


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn whatever the library raises into a ``GrammarError``; a panic of native code is no ``Exception``."""
    try:
        yield
    except (GrammarError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise GrammarError(f"{type(error).__name__}: {error}") from error


class Vocabulary:
    """A model's tokens in llguidance's form. Building it takes about 3 µs a token."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        special_token_ids: Iterable[int],
        end_token_ids: Iterable[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        """Sort the tokens.

        Args:
            tokens: by id, what each adds to a text; empty for ids that are no tokens.
            special_token_ids: tokens that are no text, whatever their bytes are.
            end_token_ids: those that end an output; special too.
            encode: how the model's tokenizer writes a text.

        Raises:
            GrammarError: nothing can end an output.
        """
        from llguidance import LLTokenizer, TokenizerWrapper

        self.end_token_ids = sorted(i for i in set(end_token_ids) if 0 <= i < len(tokens))
        if not self.end_token_ids:
            raise GrammarError("this model has no end token, and an output that is complete could not end")
        special = sorted({i for i in special_token_ids if i < len(tokens)}.union(self.end_token_ids))
        wrapper = TokenizerWrapper(_Tokens(tokens, special, self.end_token_ids[0], encode))
        self.tokenizer = LLTokenizer(wrapper, eos_token=self.end_token_ids)


class _Tokens:
    """What llguidance reads of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], special: list[int], end: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = end
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


class Grammar:
    """Compiled once, shared by every sequence that follows it."""

    def __init__(self, structured: StructuredOutput, vocabulary: Vocabulary) -> None:
        """Compile, without holding the interpreter's lock.

        Raises:
            GrammarError: it does not compile.
        """
        from llguidance import LLMatcher

        self.end_token_ids = vocabulary.end_token_ids
        with _guarded():
            self._start = LLMatcher(
                vocabulary.tokenizer, grammar_text(structured), log_level=0, limits=grammar_limits()
            )
        if self._start.is_error():
            raise GrammarError(self._start.get_error())

    def matcher(self) -> "GrammarMatcher":
        """Return a matcher at the beginning."""
        return GrammarMatcher(self._start.deep_copy(), self.end_token_ids)


class GrammarMatcher:
    """Follows one sequence's output."""

    def __init__(self, matcher: "LLMatcher", end_token_ids: list[int]) -> None:
        self._matcher = matcher
        self._end_token_ids = end_token_ids
        self.num_consumed = 0

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take the output's next tokens.

        Raises:
            GrammarError: it does not allow them.
        """
        with _guarded():
            if token_ids and not self._matcher.consume_tokens(list(token_ids)):
                raise GrammarError("the output left its grammar")
        self.num_consumed += len(token_ids)

    def allowed(self, vocab_size: int, *, may_end: bool) -> Mask:
        """Say of each token whether it may come next; ids that only pad the vocabulary may not.

        Args:
            may_end: off: end tokens are allowed only where nothing else is.

        Raises:
            GrammarError: the step costs too much.
        """
        bits = np.frombuffer(_masks.run(self._matcher.compute_bitmask), dtype=np.uint8)
        mask = np.zeros(vocab_size, dtype=np.bool_)
        known = np.unpackbits(bits, count=min(vocab_size, 8 * len(bits)), bitorder="little")
        mask[: len(known)] = known
        if self._matcher.is_error() or not mask.any():
            raise GrammarError("a step of its grammar costs too much, or the grammar leads nowhere")
        if not may_end:
            rest = mask.copy()
            rest[self._ends(vocab_size)] = False
            return rest if rest.any() else mask
        return mask

    def is_complete(self, mask: Mask) -> bool:
        """Are end tokens all that ``mask`` allows?"""
        return int(mask.sum()) == int(mask[self._ends(len(mask))].sum())

    def _ends(self, vocab_size: int) -> list[int]:
        return [i for i in self._end_token_ids if i < vocab_size]


class _BoundedCalls:
    """Runs calls on a thread, which is left to itself when one takes too long: native code cannot be interrupted."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], bytes]] | None = None
        self._results: queue.SimpleQueue[bytes | GrammarError] = queue.SimpleQueue()

    def run(self, call: Callable[[], bytes]) -> bytes:
        """Return what ``call`` returns.

        Raises:
            GrammarError: it takes too long.
        """
        if self._calls is None:
            self._calls, self._results = queue.SimpleQueue(), queue.SimpleQueue()
            arguments = self._calls, self._results
            threading.Thread(target=_serve_calls, args=arguments, daemon=True, name="grammar-masks").start()
        self._calls.put(call)
        try:
            result = self._results.get(timeout=MASK_TIMEOUT_S)
        except queue.Empty:
            self._calls = None
            raise GrammarError(f"a step of its grammar takes more than {MASK_TIMEOUT_S:g} s") from None
        if isinstance(result, GrammarError):
            raise result
        return result


def _serve_calls(
    calls: "queue.SimpleQueue[Callable[[], bytes]]", results: "queue.SimpleQueue[bytes | GrammarError]"
) -> None:
    while True:
        call = calls.get()
        try:
            with _guarded():
                results.put(call())
        except GrammarError as error:  # whoever waits raises it
            results.put(error)


# One for all: steps are computed one after the other.
_masks = _BoundedCalls()
