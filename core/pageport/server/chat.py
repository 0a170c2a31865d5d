"""``POST /v1/chat/completions``."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from pageport.errors import InvalidParameter, RequestError
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.sampling.structured import StructuredOutput
from pageport.server.answer_form import AnswerForm
from pageport.server.chat_prompt import message_text, render_prompt
from pageport.server.errors import quote
from pageport.server.generation import Generation
from pageport.server.logprobs import prompt_logprobs
from pageport.server.message_writer import MessageWriter
from pageport.server.openapi import STREAMED, documents_body
from pageport.server.parameters import sampling_params
from pageport.server.protocol.chat import (
    ChatChunk,
    ChatChunkChoice,
    ChatRequest,
    ChatResponse,
    ChatUsage,
    CompletionTokensDetails,
)
from pageport.server.protocol.common import PromptLogprobs, Usage
from pageport.server.service import Service, not_supported, service_of
from pageport.server.streaming import DONE, event, json_response, stream_events, until_disconnected
from pageport.server.usage import UsageReports

router = APIRouter()


@router.post(
    "/v1/chat/completions", response_model=ChatResponse, responses=STREAMED, openapi_extra=documents_body(ChatRequest)
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation n times."""
    service = service_of(request)
    chat = await service.build(request, ChatRequest, Chat)
    if chat.body.stream:
        return await stream_events(request, chat.events())
    return json_response(await until_disconnected(request.receive, chat.response()))


class Chat:
    """One request of this endpoint, checked."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.body = body
        self._reports = UsageReports(body)
        _check(body)
        prompt = render_prompt(service, body)
        self._form = AnswerForm(service, body, prompt)
        if self._form.needs_special_tokens:
            body = self.body = body.model_copy(update={"skip_special_tokens": False})
        # Without a limit, the answer may fill the context.
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        try:
            params = sampling_params(
                body,
                max_tokens=max_tokens,
                logprobs=(body.top_logprobs or 0) if body.logprobs else None,
                prompt_logprobs=body.prompt_logprobs,
                structured=self._form.asked,
                logits_processors=service.extensions.processors(body.logits_processors),
            )
            self._generation = ChatGeneration(
                service,
                "chatcmpl",
                body,
                [prompt],
                _held_to(params, self._form.structured()),
                # Templates write the tokens that begin a text themselves.
                add_special_tokens=bool(body.add_special_tokens),
            )
        except RequestError as error:
            error.parameter = _field_name(body, error.parameter)
            raise
        self._tokenizer = service.engine.tokenizer

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the chunks as events."""
        async with aclosing(self.chunks()) as groups:
            async for chunks in groups:
                yield "".join(map(event, chunks))
        yield DONE

    async def chunks(self) -> AsyncGenerator[list[ChatChunk], None]:
        """Yield the chunks as they come: the role of each choice, its content as it grows, its end."""
        writers = self._writers()
        async with aclosing(self._generation.deltas()) as groups:
            async for deltas in groups:
                chunks = [self._chunk([choice]) for delta in deltas for choice in writers[delta.index].chunks(delta)]
                for chunk in chunks:
                    self._reports.attach(chunk, self._generation)
                if chunks:
                    yield chunks
        if self._reports.in_last_chunk:
            yield [self._chunk([], self._generation.usage())]

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

    def _writers(self) -> list[MessageWriter]:
        echo = _echoed_text(self.body)
        writers = [
            MessageWriter(self._tokenizer, self.body, self._form, index, echo) for index in range(self.body.num_choices)
        ]
        if self._form.may_reason:
            self._generation.writers = writers
        return writers

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


class ChatGeneration(Generation):
    """Also counts the tokens of reasoning, once the writers that see them are known."""

    writers: Sequence[MessageWriter] | None = None

    def usage(self) -> Usage:
        """Count the tokens so far."""
        usage = super().usage()
        if self.writers is None:
            return usage
        num_tokens = sum(writer.num_reasoning_tokens for writer in self.writers)
        details = CompletionTokensDetails(reasoning_tokens=num_tokens)
        return ChatUsage(**usage.model_dump(exclude_unset=True), completion_tokens_details=details)


def _check(body: ChatRequest) -> None:
    """Refuse what would have to be ignored.

    Raises:
        InvalidParameter: names the field.
    """
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


def _held_to(
    params: SamplingParams | BeamSearchParams, structured: StructuredOutput | None
) -> SamplingParams | BeamSearchParams:
    if structured is None:
        return params
    if isinstance(params, BeamSearchParams):
        raise InvalidParameter("tool_choice cannot force a call with use_beam_search. Leave it out.", "tool_choice")
    return replace(params, structured=structured)


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
