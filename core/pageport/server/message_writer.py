"""``MessageWriter``: one choice of a chat answer, as chunks or as a whole message."""

import secrets
import string
from collections import deque
from typing import Any

from pageport.engine.outputs import ChoiceDelta
from pageport.server.answer_form import AnswerForm
from pageport.server.logprobs import ScoredTokens, chat_logprobs, hidden_ids
from pageport.server.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatRequest,
    ChoiceLogprobs,
    FunctionCall,
    FunctionDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from pageport.text.tokenizer import Tokenizer
from pageport.text.tool_calls.events import CallArguments, CallBegins, CallEnds, Content, Event, Reasoning
from pageport.text.tool_calls.tool_format import ToolFormat

ID_CHARACTERS = string.ascii_letters + string.digits


class MessageWriter:
    """Turns the deltas of one choice into chunks, or into the whole message: of the same parts either way."""

    def __init__(self, tokenizer: Tokenizer, body: ChatRequest, form: AnswerForm, index: int, echo: str) -> None:
        """Expect a choice that ``echo``, which the client wrote itself, is the beginning of."""
        self._tokenizer = tokenizer
        self._index = index
        self._num_top = body.top_logprobs or 0
        self._scored: ScoredTokens | None = None
        if body.logprobs:
            self._scored = ScoredTokens(tokenizer, body)
        self._shows_reasoning = body.include_reasoning is not False
        self._tool_format = form.tool_format
        self._parser = form.parser()
        self._may_reason = form.may_reason
        self._has_begun = False
        self._echo = echo
        self._deltas: list[ChatDelta] = []
        self._num_calls = 0
        self._logprobs: list[TokenLogprob] = []
        self._last = ChoiceDelta(request_id="", index=index)
        self._hidden_ids = hidden_ids(tokenizer, body)
        self._num_token_bytes = 0  # of all tokens so far
        self._uncounted: deque[int] = deque()  # where, in bytes, tokens begin that may or may not be reasoning
        self.num_reasoning_tokens = 0

    def chunks(self, delta: ChoiceDelta) -> list[ChatChunkChoice]:
        """Return the chunks that show ``delta``: role first, the end in a chunk of its own."""
        chunks: list[ChatChunkChoice] = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk(ChatDelta(role="assistant", content="")))
            if self._echo:
                chunks.append(self._chunk(ChatDelta(content=self._echo)))
        parts = self._read(delta)
        logprobs = self._release(delta)
        if logprobs and not parts:
            parts = [ChatDelta(content="")]
        for part in parts:
            chunks.append(self._chunk(part, logprobs))
            logprobs = []
        if delta.finish_reason is not None:
            end = self._chunk(ChatDelta())
            end.finish_reason = self._finish_reason(delta)
            end.stop_reason = delta.stop_reason
            chunks.append(end)
        return chunks

    def collect(self, delta: ChoiceDelta) -> None:
        """Keep what ``delta`` adds for ``whole``."""
        self._deltas += self._read(delta)
        self._logprobs += self._release(delta)
        self._last = delta

    def whole(self) -> ChatChoice:
        """Return the finished choice from what was collected."""
        content = self._echo + "".join(delta.content or "" for delta in self._deltas)
        reasoning = "".join(delta.reasoning or "" for delta in self._deltas)
        calls = _join_calls(self._deltas)
        said_nothing = not content and bool(reasoning or calls)
        message = AssistantMessage(role="assistant", content=None if said_nothing else content, refusal=None)
        if reasoning:
            message.reasoning_content = message.reasoning = reasoning
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=self._index,
            message=message,
            logprobs=None if self._scored is None else ChoiceLogprobs(content=self._logprobs, refusal=None),
            finish_reason=self._finish_reason(self._last),
            stop_reason=self._last.stop_reason,
        )

    def _read(self, delta: ChoiceDelta) -> list[ChatDelta]:
        events = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        if self._may_reason:
            self._count_reasoning(delta)
        return [part for event in events if (part := self._part(event)) is not None]

    def _part(self, event: Event) -> ChatDelta | None:
        match event:
            case Content(text):
                return ChatDelta(content=text)
            case Reasoning(text):
                return ChatDelta(reasoning_content=text, reasoning=text) if self._shows_reasoning else None
            case CallBegins(index, name):
                self._num_calls += 1
                function = FunctionDelta(name=name, arguments="")
                call = ToolCallDelta(index=index, id=call_id(self._tool_format), type="function", function=function)
                return ChatDelta(tool_calls=[call])
            case CallArguments(index, text):
                return ChatDelta(tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=text))])
            case CallEnds():
                return None

    def _count_reasoning(self, delta: ChoiceDelta) -> None:
        for token_id in delta.token_ids:
            self._uncounted.append(self._num_token_bytes)
            if token_id not in self._hidden_ids:
                self._num_token_bytes += len(self._tokenizer.token_bytes(token_id))
        while self._uncounted and self._uncounted[0] < self._parser.num_reasoning_bytes:
            self._uncounted.popleft()
            self.num_reasoning_tokens += 1

    def _finish_reason(self, delta: ChoiceDelta) -> Any:
        return "tool_calls" if delta.finish_reason == "stop" and self._num_calls else delta.finish_reason

    def _release(self, delta: ChoiceDelta) -> list[TokenLogprob]:
        if self._scored is None:
            return []
        return chat_logprobs(self._tokenizer, self._scored.release(delta), self._num_top)

    def _chunk(self, delta: ChatDelta, logprobs: list[TokenLogprob] | None = None) -> ChatChunkChoice:
        return ChatChunkChoice(
            index=self._index,
            delta=delta,
            logprobs=ChoiceLogprobs(content=logprobs, refusal=None) if logprobs else None,
            finish_reason=None,
        )


def call_id(tool_format: ToolFormat | None) -> str:
    """Make an id that nobody has seen, in the form that the model's template accepts."""
    assert tool_format is not None
    return tool_format.id_prefix + "".join(secrets.choice(ID_CHARACTERS) for _ in range(tool_format.id_length))


def _join_calls(deltas: list[ChatDelta]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        for part in delta.tool_calls or ():
            if part.id is not None:
                function = FunctionCall(name=part.function.name or "", arguments="")
                calls.append(ToolCall(id=part.id, type="function", function=function))
                arguments.append([])
            arguments[part.index].append(part.function.arguments)
    for call, texts in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(texts)
    return calls
