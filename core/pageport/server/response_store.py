"""``ResponseStore``: answers of ``/v1/responses`` that clients may come back to."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pageport.server.protocol.chat import ChatMessage
from pageport.server.protocol.responses import (
    ConversationItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputMessage,
    InputText,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ResponseObject,
)

# What an answer costs besides its text, about.
OVERHEAD_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """An answer and the conversation that it ends, instructions left out: those hold for one request."""

    response: ResponseObject
    conversation: Sequence[ChatMessage]

    @property
    def input_items(self) -> list[ConversationItem]:
        """The conversation before the answer, as items."""
        items: list[ConversationItem] = []
        for message in self.conversation[:-1]:
            items += self._items(message, len(items))
        return items

    @property
    def num_bytes(self) -> int:
        """Estimate the memory, as if conversations shared nothing."""
        texts = [len(message.content or "") for message in self.conversation]
        calls = [call["function"] for message in self.conversation for call in message.tool_calls or ()]
        texts += [len(call["name"]) + len(call["arguments"]) for call in calls]
        thoughts = [item for item in self.response.output if isinstance(item, ReasoningItem)]
        texts += [len(part.text) for thought in thoughts for part in thought.content]
        messages = [item for item in self.response.output if isinstance(item, OutputMessage)]
        logprobs = [len(part.logprobs) for message in messages for part in message.content]
        return OVERHEAD_BYTES * (1 + len(texts)) + 2 * sum(texts) + OVERHEAD_BYTES * sum(logprobs)

    def _items(self, message: ChatMessage, number: int) -> list[ConversationItem]:
        """Return the items that ``message`` was, the first one with ``number`` in its id."""
        text = str(message.content)
        if message.role == "tool":
            return [
                FunctionCallOutputItem(
                    id=f"fco_{number}_{self.response.id}", call_id=message.tool_call_id or "", output=text
                )
            ]
        items: list[ConversationItem] = []
        if text or not message.tool_calls:
            part = (OutputText if message.role == "assistant" else InputText)(text=text)
            items.append(InputMessage(id=f"msg_{number}_{self.response.id}", role=message.role, content=[part]))
        for call in message.tool_calls or ():
            items.append(
                FunctionCallItem(
                    id=f"fc_{number + len(items)}_{self.response.id}",
                    call_id=call["id"],
                    name=call["function"]["name"],
                    arguments=call["function"]["arguments"],
                    status="completed",
                )
            )
        return items


class ResponseStore:
    """Keeps so many answers, and so many bytes; the one that was stored first goes first."""

    def __init__(self, *, max_responses: int, max_bytes: int) -> None:
        """Start empty."""
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, stored: StoredResponse) -> None:
        """Keep an answer, if need be instead of older ones; one that is too long alone is not kept."""
        if stored.num_bytes > self._max_bytes or not self._max_responses:
            return
        self._responses[stored.response.id] = stored
        self.num_bytes += stored.num_bytes
        while len(self._responses) > self._max_responses or self.num_bytes > self._max_bytes:
            self._forget(next(iter(self._responses)))

    def get(self, response_id: str) -> StoredResponse | None:
        return self._responses.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Forget an answer; was it there? Those that continue it keep the conversation."""
        if response_id not in self._responses:
            return False
        self._forget(response_id)
        return True

    def _forget(self, response_id: str) -> None:
        self.num_bytes -= self._responses.pop(response_id).num_bytes
