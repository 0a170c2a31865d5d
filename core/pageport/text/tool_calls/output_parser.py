"""``OutputParser``: a model's output as reasoning, content and tool calls."""

from pageport.text.tool_calls.call_reader import CallReader, join_events
from pageport.text.tool_calls.events import Content, Event, Reasoning
from pageport.text.tool_calls.reasoning_reader import ReasoningReader


class OutputParser:
    """Reads the text of one output, in pieces of any size; with neither reader, all of it is content."""

    def __init__(self, reasoning: ReasoningReader | None, calls: CallReader | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def num_reasoning_bytes(self) -> int:
        """How much of the text so far is reasoning, its markers included."""
        return 0 if self._reasoning is None else self._reasoning.num_reasoning_bytes

    def push(self, text: str) -> list[Event]:
        """Add text and return what is certain now."""
        if self._reasoning is None:
            return self._read_answer([Content(text)] if text else [])
        return self._read_answer(self._reasoning.push(text))

    def finish(self) -> list[Event]:
        """Return what was withheld, when no more text comes."""
        events = self._read_answer([] if self._reasoning is None else self._reasoning.finish())
        if self._calls is not None:
            events += self._calls.finish()
        return join_events(events)

    def _read_answer(self, pieces: list[Content | Reasoning]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            if self._calls is None or isinstance(piece, Reasoning):
                events.append(piece)
            else:
                events += self._calls.push(piece.text)
        return events
