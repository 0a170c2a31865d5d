"""``ResponseStore``: answers of ``/v1/responses`` that clients may come back to."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pageport.server.protocol.chat import ChatMessage
from pageport.server.protocol.responses import InputMessage, InputText, OutputText, ResponseObject

# What an answer costs besides its text, about.
OVERHEAD_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """An answer and the conversation that it ends, instructions left out: those hold for one request."""

    response: ResponseObject
    conversation: Sequence[ChatMessage]

    @property
    def input_items(self) -> list[InputMessage]:
        """The conversation before the answer, as items."""
        return [
            InputMessage(
                id=f"msg_{position}_{self.response.id}",
                role=message.role,
                content=[(OutputText if message.role == "assistant" else InputText)(text=str(message.content))],
            )
            for position, message in enumerate(self.conversation[:-1])
        ]

    @property
    def num_bytes(self) -> int:
        """Estimate the memory, as if conversations shared nothing."""
        texts = [len(message.content or "") for message in self.conversation]
        logprobs = [len(part.logprobs) for item in self.response.output for part in item.content]
        return OVERHEAD_BYTES * (1 + len(texts)) + 2 * sum(texts) + OVERHEAD_BYTES * sum(logprobs)


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
