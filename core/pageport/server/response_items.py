"""Items of an answer while they grow: a message, a thought, or a call of a function."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pageport.server.protocol.chat import TokenLogprob
from pageport.server.protocol.responses import (
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    FunctionCallItem,
    ItemEvent,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    Status,
    TextDeltaEvent,
    TextDoneEvent,
)

# Returns the number of the next event.
NextNumber = Callable[[], int]


class GrowingItem(ABC):
    """An item at ``output_index`` of the answer, whose events are numbered by ``next_number``."""

    def __init__(self, kind: str, output_index: int, next_number: NextNumber) -> None:
        self._id = f"{kind}_{uuid.uuid4().hex}"
        self._output_index = output_index
        self._next_number = next_number

    @abstractmethod
    def item(self, status: Status) -> OutputItem:
        """Return the item as it is now."""

    def open(self) -> list[ResponseEvent]:
        """Return the events that begin it."""
        return [self._item_event("response.output_item.added", "in_progress")]

    def close(self, status: Status) -> list[ResponseEvent]:
        """Return the events that end it."""
        return [self._item_event("response.output_item.done", status)]

    def _item_event(self, kind: str, status: Status) -> ItemEvent:
        return ItemEvent(
            type=kind, sequence_number=self._next_number(), output_index=self._output_index, item=self.item(status)
        )


class GrowingText(GrowingItem):
    """An item of one part, a text."""

    def __init__(self, kind: str, output_index: int, next_number: NextNumber) -> None:
        super().__init__(kind, output_index, next_number)
        self._has_part = False
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def open(self) -> list[ResponseEvent]:
        """Return the events that begin the item and its part."""
        events = super().open()
        self._has_part = True
        return [*events, self._part_event("response.content_part.added")]

    def close(self, status: Status) -> list[ResponseEvent]:
        """Return the events that end the part and the item."""
        return [self._text_done(), self._part_event("response.content_part.done"), *super().close(status)]

    @abstractmethod
    def _part(self) -> OutputText | ReasoningText: ...

    @abstractmethod
    def _text_done(self) -> ResponseEvent: ...

    def _part_event(self, kind: str) -> PartEvent:
        return PartEvent(part=self._part(), **self._place(kind))

    def _place(self, kind: str) -> dict[str, Any]:
        return {
            "type": kind,
            "sequence_number": self._next_number(),
            "item_id": self._id,
            "output_index": self._output_index,
        }


class GrowingMessage(GrowingText):
    """What the model says."""

    def __init__(self, output_index: int, next_number: NextNumber) -> None:
        super().__init__("msg", output_index, next_number)
        self._logprobs: list[TokenLogprob] = []

    def item(self, status: Status) -> OutputMessage:
        """Return the message as it is now."""
        return OutputMessage(id=self._id, status=status, content=[self._part()] if self._has_part else [])

    def add(self, text: str, logprobs: list[TokenLogprob]) -> ResponseEvent:
        """Append to the text."""
        self._texts.append(text)
        self._logprobs += logprobs
        return TextDeltaEvent(delta=text, logprobs=logprobs, **self._place("response.output_text.delta"))

    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=list(self._logprobs))

    def _text_done(self) -> ResponseEvent:
        return TextDoneEvent(text=self.text, logprobs=self._logprobs, **self._place("response.output_text.done"))


class GrowingReasoning(GrowingText):
    """What the model thinks."""

    def __init__(self, output_index: int, next_number: NextNumber) -> None:
        super().__init__("rs", output_index, next_number)

    def item(self, status: Status) -> ReasoningItem:
        """Return the thought as it is now."""
        return ReasoningItem(id=self._id, status=status, content=[self._part()] if self._has_part else [])

    def add(self, text: str) -> ResponseEvent:
        """Append to the text."""
        self._texts.append(text)
        return ReasoningDeltaEvent(delta=text, **self._place("response.reasoning_text.delta"))

    def _part(self) -> ReasoningText:
        return ReasoningText(text=self.text)

    def _text_done(self) -> ResponseEvent:
        return ReasoningDoneEvent(text=self.text, **self._place("response.reasoning_text.done"))


class GrowingCall(GrowingItem):
    """A call, whose arguments come in pieces."""

    def __init__(self, output_index: int, next_number: NextNumber, call_id: str, name: str) -> None:
        super().__init__("fc", output_index, next_number)
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def item(self, status: Status) -> FunctionCallItem:
        """Return the call as it is now."""
        return FunctionCallItem(
            id=self._id, call_id=self._call_id, name=self._name, arguments="".join(self._arguments), status=status
        )

    def add(self, arguments: str) -> ResponseEvent:
        """Append to the arguments."""
        self._arguments.append(arguments)
        return ArgumentsDeltaEvent(
            type="response.function_call_arguments.delta",
            sequence_number=self._next_number(),
            item_id=self._id,
            output_index=self._output_index,
            delta=arguments,
        )

    def close(self, status: Status) -> list[ResponseEvent]:
        """Return the events that end the arguments and the call."""
        done = ArgumentsDoneEvent(
            type="response.function_call_arguments.done",
            sequence_number=self._next_number(),
            item_id=self._id,
            output_index=self._output_index,
            name=self._name,
            arguments="".join(self._arguments),
        )
        return [done, *super().close(status)]
