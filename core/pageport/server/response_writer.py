"""``ResponseWriter``: from the chunks of a chat answer to a response object and the events that build it up."""

import time

from pageport.sampling.params import SamplingParams
from pageport.server.protocol.chat import ChatChunk, ChatMessage, ChatUsage, TokenLogprob, ToolCallDelta
from pageport.server.protocol.common import Payload, Usage
from pageport.server.protocol.responses import (
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    OutputMessage,
    OutputTokensDetails,
    ResponseEvent,
    ResponseFailure,
    ResponseObject,
    ResponseRequest,
    ResponseUsage,
    SnapshotEvent,
    Status,
)
from pageport.server.response_items import GrowingCall, GrowingItem, GrowingMessage, GrowingReasoning

DEFAULTS = SamplingParams()


class ResponseWriter:
    """``response`` is the answer so far, and whole after ``end``."""

    def __init__(self, body: ResponseRequest, *, response_id: str, model: str, created_at: int) -> None:
        """Show what holds of ``body``."""
        self._num_events = 0
        self._growing: GrowingItem | None = None
        self._unshown: list[TokenLogprob] = []  # of tokens before any text
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
            tools=body.tools or [],
            tool_choice=body.tool_choice or "auto",
            parallel_tool_calls=body.parallel_tool_calls is not False,
        )

    @property
    def has_begun(self) -> bool:
        """Was any event made?"""
        return self._num_events > 0

    @property
    def said(self) -> ChatMessage:
        """The finished answer as a message of the conversation."""
        calls: list[Payload] = []
        texts: list[str] = []
        for item in self.response.output:
            if isinstance(item, FunctionCallItem):
                function = {"name": item.name, "arguments": item.arguments}
                calls.append({"id": item.call_id, "type": "function", "function": function})
            elif isinstance(item, OutputMessage):
                texts += [part.text for part in item.content]
        return ChatMessage(role="assistant", content="".join(texts), tool_calls=calls or None)

    def write(self, chunk: ChatChunk) -> list[ResponseEvent]:
        """Return the events that show ``chunk``; before the first, those that open the answer."""
        events = [] if self.has_begun else self._begin()
        if chunk.usage is not None:
            self.response.usage = _usage(chunk.usage)
        for choice in chunk.choices:
            self._finish_reason = choice.finish_reason or self._finish_reason
            if choice.delta.reasoning_content:
                events += self._add_reasoning(choice.delta.reasoning_content)
                continue
            # Tokens without text are the beginning of one, or markers of something else.
            if choice.logprobs is not None and (choice.delta.content or self._may_say):
                self._unshown += choice.logprobs.content
            if choice.delta.content or (self._unshown and isinstance(self._growing, GrowingMessage)):
                events += self._add_text(choice.delta.content or "")
            for call in choice.delta.tool_calls or ():
                events += self._add_call(call)
        return events

    def end(self) -> list[ResponseEvent]:
        """Finish the answer and return the events that close it."""
        status: Status = "completed"
        if self._finish_reason == "length":
            status = "incomplete"
            self.response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        events: list[ResponseEvent] = []
        if self._growing is None:
            # Silence is a message too.
            events += (
                self._add_text("") if self._unshown else self._open(GrowingMessage(self._next_index, self._next_number))
            )
        events += self._close(status)
        self.response.status = status
        self.response.completed_at = int(time.time()) if status == "completed" else None
        return [*events, self._snapshot(f"response.{status}")]

    def fail(self, reason: str) -> ResponseEvent:
        """Give the answer up and return the event that says why."""
        self.response.status = "failed"
        self.response.error = ResponseFailure(code="server_error", message=reason)
        return self._snapshot("response.failed")

    def _begin(self) -> list[ResponseEvent]:
        return [self._snapshot("response.created"), self._snapshot("response.in_progress")]

    def _add_text(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if not isinstance(self._growing, GrowingMessage):
            events += self._open(GrowingMessage(self._next_index, self._next_number))
        assert isinstance(self._growing, GrowingMessage)
        logprobs, self._unshown = self._unshown, []
        return [*events, self._growing.add(text, logprobs)]

    def _add_reasoning(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if not isinstance(self._growing, GrowingReasoning):
            events += self._open(GrowingReasoning(self._next_index, self._next_number))
        assert isinstance(self._growing, GrowingReasoning)
        return [*events, self._growing.add(text)]

    def _add_call(self, call: ToolCallDelta) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if call.id is not None:
            events += self._open(GrowingCall(self._next_index, self._next_number, call.id, call.function.name or ""))
        if call.function.arguments:
            assert isinstance(self._growing, GrowingCall)
            events.append(self._growing.add(call.function.arguments))
        return events

    @property
    def _may_say(self) -> bool:
        return self._growing is None or isinstance(self._growing, GrowingMessage)

    @property
    def _next_index(self) -> int:
        return len(self.response.output) + (self._growing is not None)

    def _open(self, item: GrowingItem) -> list[ResponseEvent]:
        events = self._close("completed")
        self._growing = item
        if not self._may_say:
            self._unshown.clear()
        return [*events, *item.open()]

    def _close(self, status: Status) -> list[ResponseEvent]:
        if self._growing is None:
            return []
        events = self._growing.close(status)
        self.response.output.append(self._growing.item(status))
        self._growing = None
        return events

    def _snapshot(self, kind: str) -> SnapshotEvent:
        # Events are written when others of their group are made already.
        now = self.response.model_copy(update={"output": list(self.response.output)})
        return SnapshotEvent(type=kind, sequence_number=self._next_number(), response=now)

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
