"""``POST /v1/chat/completions``."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from pageport.engine.outputs import ChoiceDelta
from pageport.errors import InvalidParameter, RequestError
from pageport.server.chat_prompt import message_text, render_prompt
from pageport.server.errors import quote
from pageport.server.generation import Generation
from pageport.server.logprobs import ScoredTokens, chat_logprobs, prompt_logprobs
from pageport.server.openapi import documents_body
from pageport.server.parameters import sampling_params
from pageport.server.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatRequest,
    ChatResponse,
    ChoiceLogprobs,
    TokenLogprob,
)
from pageport.server.protocol.common import PromptLogprobs, Usage
from pageport.server.service import Service, not_supported, service_of
from pageport.server.streaming import DONE, event, json_response, stream_events, until_disconnected
from pageport.server.usage import UsageReports
from pageport.text.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatResponse, openapi_extra=documents_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation n times."""
    service = service_of(request)
    chat = Chat(service, await service.read(request, ChatRequest))
    if chat.body.stream:
        return await stream_events(request, chat.events())
    return json_response(await until_disconnected(request.receive, chat.response()))


class Chat:
    """One request of this endpoint, checked."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.body = body
        self._reports = UsageReports(body)
        _check(body)
        # Without a limit, the answer may fill the context.
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        try:
            self._generation = Generation(
                service,
                "chatcmpl",
                body,
                [render_prompt(service, body)],
                sampling_params(
                    body,
                    max_tokens=max_tokens,
                    logprobs=(body.top_logprobs or 0) if body.logprobs else None,
                    prompt_logprobs=body.prompt_logprobs,
                ),
                # Templates write the tokens that begin a text themselves.
                add_special_tokens=bool(body.add_special_tokens),
            )
        except RequestError as error:
            error.parameter = _field_name(body, error.parameter)
            raise
        self._tokenizer = service.engine.tokenizer

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the chunks as events: the role of each choice, its content as it grows, its end."""
        writers = self._writers()
        async with aclosing(self._generation.deltas()) as groups:
            async for deltas in groups:
                chunks = [self._chunk([choice]) for delta in deltas for choice in writers[delta.index].chunks(delta)]
                for chunk in chunks:
                    self._reports.attach(chunk, self._generation)
                if chunks:
                    yield "".join(map(event, chunks))
        if self._reports.in_last_chunk:
            yield event(self._chunk([], self._generation.usage()))
        yield DONE

    async def response(self) -> ChatResponse:
        """Wait for all choices and answer with them."""
        writers = self._writers()
        positions: PromptLogprobs | None = None
        async with aclosing(self._generation.deltas()) as groups:
            async for deltas in groups:
                for delta in deltas:
                    writers[delta.index].collect(delta)
                    if delta.prompt_logprobs is not None:
                        positions = prompt_logprobs(delta.prompt_logprobs)
        response = ChatResponse(
            id=self._generation.id,
            object="chat.completion",
            created=self._generation.created,
            model=self._generation.model,
            choices=[writer.whole() for writer in writers],
            usage=self._generation.usage(),
        )
        if self.body.prompt_logprobs is not None:
            response.prompt_logprobs = positions
        return response

    def _writers(self) -> list["MessageWriter"]:
        return [MessageWriter(self._tokenizer, self.body, index) for index in range(self.body.num_choices)]

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> ChatChunk:
        chunk = ChatChunk(
            id=self._generation.id,
            object="chat.completion.chunk",
            created=self._generation.created,
            model=self._generation.model,
            choices=choices,
        )
        if usage is not None:
            chunk.usage = usage
        return chunk


class MessageWriter:
    """Turns the deltas of one choice into chunks, or into the whole message."""

    def __init__(self, tokenizer: Tokenizer, body: ChatRequest, index: int) -> None:
        self._tokenizer = tokenizer
        self._index = index
        self._num_top = body.top_logprobs or 0
        self._scored: ScoredTokens | None = None
        if body.logprobs:
            self._scored = ScoredTokens(tokenizer, body)
        self._has_begun = False
        self._echo = _echoed_text(body)
        self._texts = [self._echo]
        self._logprobs: list[TokenLogprob] = []
        self._last = ChoiceDelta(request_id="", index=index)

    def chunks(self, delta: ChoiceDelta) -> list[ChatChunkChoice]:
        """Return the chunks that show ``delta``: role first, the end in a chunk of its own."""
        chunks: list[ChatChunkChoice] = []
        if not self._has_begun:
            self._has_begun = True
            chunks.append(self._chunk(ChatDelta(role="assistant", content="")))
            if self._echo:
                chunks.append(self._chunk(ChatDelta(content=self._echo)))
        logprobs = self._release(delta)
        if delta.text or logprobs:
            chunks.append(self._chunk(ChatDelta(content=delta.text), logprobs))
        if delta.finish_reason is not None:
            end = self._chunk(ChatDelta())
            end.finish_reason = delta.finish_reason  # type: ignore[assignment]  # values of FinishReason
            end.stop_reason = delta.stop_reason
            chunks.append(end)
        return chunks

    def collect(self, delta: ChoiceDelta) -> None:
        """Keep what ``delta`` adds for ``whole``."""
        self._texts.append(delta.text)
        self._logprobs += self._release(delta)
        self._last = delta

    def whole(self) -> ChatChoice:
        """Return the finished choice from what was collected."""
        return ChatChoice(
            index=self._index,
            message=AssistantMessage(role="assistant", content="".join(self._texts), refusal=None),
            logprobs=None if self._scored is None else ChoiceLogprobs(content=self._logprobs, refusal=None),
            finish_reason=self._last.finish_reason,  # type: ignore[arg-type]  # pydantic checks it
            stop_reason=self._last.stop_reason,
        )

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


def _check(body: ChatRequest) -> None:
    """Refuse what would have to be ignored.

    Raises:
        InvalidParameter: names the field.
    """
    if body.tools and body.tool_choice != "none":
        raise not_supported("tools", f"with tool_choice {quote(body.tool_choice or 'auto')}")
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise InvalidParameter("tool_choice asks for a tool, but there are no tools.", "tool_choice")
    if body.response_format and body.response_format.get("type") != "text":
        raise not_supported("response_format", f"of type {quote(body.response_format.get('type'))}")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidParameter("top_logprobs needs logprobs. Set logprobs to true.", "top_logprobs")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidParameter("prompt_logprobs are not streamed. Leave out stream.", "prompt_logprobs")
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if getattr(body, limit) == 0:
        raise InvalidParameter(f"{limit} is 0: nothing would come back. Ask for at least 1.", limit)
    modalities = (body.model_extra or {}).get("modalities")
    if modalities and modalities != ["text"]:
        raise not_supported("modalities", quote(modalities))


def _field_name(body: ChatRequest, parameter: str | None) -> str | None:
    """Name the field of this endpoint that a refused parameter comes from."""
    if parameter == "prompt":
        return "messages"
    if parameter == "max_tokens" and body.max_completion_tokens is not None:
        return "max_completion_tokens"
    return parameter


def _echoed_text(body: ChatRequest) -> str:
    """Return the beginning of the answer that the client wrote itself, if it wants it back."""
    last = body.messages[-1]
    return message_text(last) if body.echo and last.role == "assistant" else ""
