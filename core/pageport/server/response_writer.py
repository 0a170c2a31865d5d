"""``ResponseWriter``: from the chunks of a chat answer to a response object and the events that build it up."""

import time
import uuid

from pageport.sampling.params import SamplingParams
from pageport.server.protocol.chat import ChatChunk, ChatUsage, TokenLogprob
from pageport.server.protocol.common import Usage
from pageport.server.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    ResponseEvent,
    ResponseFailure,
    ResponseObject,
    ResponseRequest,
    ResponseUsage,
    SnapshotEvent,
    Status,
    TextDeltaEvent,
    TextDoneEvent,
)

DEFAULTS = SamplingParams()


class ResponseWriter:
    """``response`` is the answer so far, and whole after ``end``."""

    def __init__(self, body: ResponseRequest, *, response_id: str, model: str, created_at: int) -> None:
        """Show what holds of ``body``."""
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._num_events = 0
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None
        text = body.text.model_dump(exclude_none=True) if body.text is not None else {}
        self.response = ResponseObject(
            id=response_id,
            created_at=created_at,
            status="in_progress",
            model=model,
            instructions=body.instructions,
            previous_response_id=body.previous_response_id,
            store=body.store is not False,
            max_output_tokens=body.max_output_tokens,
            temperature=DEFAULTS.temperature if body.temperature is None else body.temperature,
            top_p=DEFAULTS.top_p if body.top_p is None else body.top_p,
            top_logprobs=body.top_logprobs or 0,
            text={"format": {"type": "text"}} | text,
            metadata=body.metadata or {},
            tool_choice="none" if body.tool_choice == "none" else "auto",
            parallel_tool_calls=body.parallel_tool_calls is not False,
        )

    @property
    def has_begun(self) -> bool:
        """Was any event made?"""
        return self._num_events > 0

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def write(self, chunk: ChatChunk) -> list[ResponseEvent]:
        """Return the events that show ``chunk``; before the first, those that open the answer."""
        events = [] if self.has_begun else self._begin()
        if chunk.usage is not None:
            self.response.usage = _usage(chunk.usage)
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            text = choice.delta.content or ""
            logprobs = choice.logprobs.content if choice.logprobs is not None else []
            if text or logprobs:
                self._texts.append(text)
                self._logprobs += logprobs
                events.append(
                    TextDeltaEvent(
                        type="response.output_text.delta",
                        sequence_number=self._next_number(),
                        item_id=self._item_id,
                        delta=text,
                        logprobs=logprobs,
                    )
                )
        return events

    def end(self) -> list[ResponseEvent]:
        """Finish the answer and return the events that close it."""
        status: Status = "completed"
        if self._finish_reason == "length":
            status = "incomplete"
            self.response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        self.response.status = status
        self.response.completed_at = int(time.time()) if status == "completed" else None
        part = OutputText(text=self.text, logprobs=self._logprobs)
        message = self._message(status, [part])
        self.response.output = [message]
        return [
            TextDoneEvent(
                type="response.output_text.done",
                sequence_number=self._next_number(),
                item_id=self._item_id,
                text=part.text,
                logprobs=part.logprobs,
            ),
            PartEvent(
                type="response.content_part.done", sequence_number=self._next_number(), item_id=self._item_id, part=part
            ),
            ItemEvent(type="response.output_item.done", sequence_number=self._next_number(), item=message),
            SnapshotEvent(type=f"response.{status}", sequence_number=self._next_number(), response=self.response),
        ]

    def fail(self, reason: str) -> ResponseEvent:
        """Give the answer up and return the event that says why."""
        self.response.status = "failed"
        self.response.error = ResponseFailure(code="server_error", message=reason)
        return SnapshotEvent(type="response.failed", sequence_number=self._next_number(), response=self.response)

    def _begin(self) -> list[ResponseEvent]:
        return [
            SnapshotEvent(type="response.created", sequence_number=self._next_number(), response=self.response),
            SnapshotEvent(type="response.in_progress", sequence_number=self._next_number(), response=self.response),
            ItemEvent(
                type="response.output_item.added",
                sequence_number=self._next_number(),
                item=self._message("in_progress", []),
            ),
            PartEvent(
                type="response.content_part.added",
                sequence_number=self._next_number(),
                item_id=self._item_id,
                part=OutputText(),
            ),
        ]

    def _message(self, status: Status, content: list[OutputText]) -> OutputMessage:
        return OutputMessage(id=self._item_id, status=status, content=content)

    def _next_number(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _usage(usage: Usage) -> ResponseUsage:
    details = usage.prompt_tokens_details
    reasoning = usage.completion_tokens_details if isinstance(usage, ChatUsage) else None
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=details.cached_tokens if details is not None else 0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=reasoning.reasoning_tokens if reasoning is not None else 0
        ),
        total_tokens=usage.total_tokens,
    )
