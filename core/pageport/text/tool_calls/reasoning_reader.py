"""``ReasoningReader``: tell an output's reasoning from the rest."""

from enum import Enum, auto

from pageport.text.tool_calls.events import Content, Reasoning
from pageport.text.tool_calls.reasoning_format import ReasoningFormat


class _Place(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()  # between the end of the reasoning and the answer
    ANSWER = auto()


class ReasoningReader:
    """Splits text that comes in pieces; how it is cut makes no difference.

    Line breaks next to the markers belong to the format.
    """

    def __init__(self, reasoning_format: ReasoningFormat, *, is_open: bool) -> None:
        """Expect an output; ``is_open`` when it begins within reasoning."""
        self._format = reasoning_format
        self._place = _Place.REASONING if is_open else _Place.START
        self._space: list[str] = []  # withheld; belongs to the format if a marker follows
        self._tail = ""  # withheld, after the space; may become a marker
        self._has_reasoned = False
        self._num_bytes = 0  # of all text so far
        self.num_reasoning_bytes = 0  # of the text that is reasoning, its markers included

    def push(self, text: str) -> list[Content | Reasoning]:
        """Add text and return what is certain now."""
        self._num_bytes += len(text.encode())
        text, self._tail = self._tail + text, ""
        read: list[Content | Reasoning] = []
        if self._place is _Place.START:
            text = self._read_start(text)
        if self._place is _Place.REASONING:
            text = self._read_reasoning(text, read)
        if self._place is _Place.GAP:
            text = text.lstrip("\n")
            if text:
                self._place = _Place.ANSWER
        if self._place is _Place.ANSWER and text:
            read.append(Content(text))
        return read

    def finish(self) -> list[Content | Reasoning]:
        """Return what was withheld, when no more text comes."""
        if self._place is _Place.START:
            held = self._take_space() + self._tail
            return [Content(held)] if held else []
        return [Reasoning(self._take_space() + self._tail)] if self._tail else []

    def _read_start(self, text: str) -> str:
        """Return what follows the marker or, when there is none, all text so far."""
        begun = text.lstrip()
        self._space.append(text[: len(text) - len(begun)])
        marker = self._format.begin_marker
        if begun.startswith(marker):
            self._place = _Place.REASONING
            self._space.clear()
            return begun[len(marker) :]
        if marker.startswith(begun):
            self._tail = begun
            return ""
        self._place = _Place.ANSWER
        return self._take_space() + begun

    def _read_reasoning(self, text: str, read: list[Content | Reasoning]) -> str:
        """Append what is reasoning to ``read`` and return what follows it."""
        marker = self._format.end_marker
        reasoning, found, rest = text.partition(marker)
        self.num_reasoning_bytes = self._num_bytes - len(rest.encode())
        if not found:
            begun = next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)
            reasoning, self._tail = text[: len(text) - begun], text[len(text) - begun :]
        if not self._has_reasoned:
            reasoning = reasoning.lstrip("\n")
        shown = reasoning.rstrip("\n")
        if shown:
            self._has_reasoned = True
            read.append(Reasoning(self._take_space() + shown))
        self._space.append(reasoning[len(shown) :])
        if found:
            self._place = _Place.GAP
            self._space.clear()
        return rest

    def _take_space(self) -> str:
        space = "".join(self._space)
        self._space.clear()
        return space
