"""``StopMatcher``: find stop strings in text that comes in pieces."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopStep(NamedTuple):
    """What a piece of text led to."""

    text: str  # may be shown now
    matched: str | None = None  # the stop string found: nothing comes after it


class _State(NamedTuple):
    """A node of the automaton: the longest end of the text so far that begins some stop string."""

    depth: int  # length of that end, in characters: what must be withheld
    following: dict[str, int]


class StopMatcher:
    """Withholds what may become a stop string and ends at the first that is complete.

    The match that ends first wins, so the result does not depend on how the text was cut into pieces; of several
    that end at the same character the longest wins. Constant work a character, whatever the stop strings
    (Aho, Corasick 1975).
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._include = include_in_output
        self._states = [_State(0, {})]
        self._matches: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallbacks = [0] * len(self._states)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> StopStep:
        """Add text; empty stop strings never match."""
        if len(self._states) == 1:
            return StopStep(text)
        state = self._state
        for position, character in enumerate(text):
            state = self._advance(state, character)
            matched = self._matches[state]
            if matched is not None:
                return self._end(self._held + text[: position + 1], matched)
        self._state = state
        return self._withhold(self._held + text, self._states[state].depth)

    def flush(self) -> str:
        """Return what was withheld, when no more text comes."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _end(self, text: str, matched: str) -> StopStep:
        self._held, self._state = "", 0
        return StopStep(text if self._include else text[: len(text) - len(matched)], matched)

    def _withhold(self, text: str, depth: int) -> StopStep:
        cut = len(text) - depth
        self._held = text[cut:]
        return StopStep(text[:cut])

    def _advance(self, state: int, character: str) -> int:
        while True:
            following = self._states[state].following.get(character)
            if following is not None:
                return following
            if state == 0:
                return 0
            state = self._fallbacks[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for depth, character in enumerate(stop, start=1):
            following = self._states[state].following
            if character not in following:
                following[character] = len(self._states)
                self._states.append(_State(depth, {}))
                self._matches.append(None)
            state = following[character]
        if state:
            self._matches[state] = stop

    def _link(self) -> None:
        """Set where each state falls back to, shorter ones first."""
        waiting = deque(self._states[0].following.values())
        while waiting:
            state = waiting.popleft()
            for character, following in self._states[state].following.items():
                fallback = self._advance(self._fallbacks[state], character)
                self._fallbacks[following] = fallback
                # A shorter stop string that ends here as well matters only where no longer one does.
                if self._matches[following] is None:
                    self._matches[following] = self._matches[fallback]
                waiting.append(following)
