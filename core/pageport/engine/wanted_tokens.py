"""``WantedTokens``: the tokens of a step whose hidden states somebody reads."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pageport.scheduling.batch import Batch


class WantedTokens:
    """Which tokens of a step are read, and which row each has where only these are computed to the end.

    Of an entry that is sampled from it is the last token, of one that is scored or pooled all of them.
    """

    def __init__(self, batch: Batch, entry_starts: npt.NDArray[np.int32]) -> None:
        """Look at one step.

        Args:
            entry_starts: each entry's first token in the step; behind them the number of all tokens.
        """
        self._entry_starts = entry_starts
        num_tokens = int(entry_starts[-1])
        is_wanted = np.zeros(num_tokens, np.bool_)
        is_wanted[self._last_tokens(batch.sample_sources)] = True
        for entry in (*batch.prompt_logprob_entries, *batch.pooled_entries):
            is_wanted[entry_starts[entry] : entry_starts[entry + 1]] = True
        self.are_sampled = not batch.prompt_logprob_entries and not batch.pooled_entries
        """Is each the last token of its entry, to be sampled from?"""
        self._rows = np.cumsum(is_wanted) - 1
        self.tokens: npt.NDArray[np.int64] | None = None if is_wanted.all() else np.flatnonzero(is_wanted)
        """Ascending; None where all are wanted."""

    def rows(self, entry: int, start: int, stop: int) -> slice:
        """Return the rows of an entry's tokens ``start`` … ``stop - 1``, counted from its first of the step."""
        if start >= stop:
            return slice(0)
        first = int(self._rows[self._entry_starts[entry] + start])
        return slice(first, first + stop - start)

    def last_rows(self, entries: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the row of the last token of each of these entries."""
        return self._rows[self._last_tokens(entries)]

    def _last_tokens(self, entries: Sequence[int]) -> npt.NDArray[np.int64]:
        return self._entry_starts[np.asarray(entries, np.int64) + 1].astype(np.int64) - 1
