"""``POST /v1/completions``."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from pageport.engine.outputs import ChoiceDelta, Logprob
from pageport.errors import InvalidParameter
from pageport.server.generation import Generation
from pageport.server.logprobs import CompletionColumns, ScoredToken, ScoredTokens, join_columns, prompt_logprobs
from pageport.server.openapi import STREAMED, documents_body
from pageport.server.parameters import sampling_params
from pageport.server.protocol.common import Usage
from pageport.server.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
)
from pageport.server.service import Service, service_of
from pageport.server.streaming import DONE, event, json_response, stream_events, until_disconnected
from pageport.server.structured import structured_output
from pageport.server.usage import UsageReports
from pageport.text.tokenizer import Tokenizer

router = APIRouter()

# What OpenAI's endpoint of this name generates when nothing is said.
DEFAULT_MAX_TOKENS = 16

PromptPositions = Sequence[Mapping[int, Logprob] | None]


@router.post(
    "/v1/completions",
    response_model=CompletionResponse,
    responses=STREAMED,
    openapi_extra=documents_body(CompletionRequest),
)
async def create_completion(request: Request) -> Response:
    """Continue each prompt n times."""
    service = service_of(request)
    completion = await service.build(request, CompletionRequest, Completion)
    if completion.body.stream:
        return await stream_events(request, completion.events())
    return json_response(await until_disconnected(request.receive, completion.response()))


class Completion:
    """One request of this endpoint, checked."""

    def __init__(self, service: Service, body: CompletionRequest) -> None:
        self.body = body
        self._reports = UsageReports(body)
        # The engine always generates; with echo and max_tokens 0 its token is not shown.
        is_prompt_only = body.max_tokens == 0
        if is_prompt_only and not body.echo:
            raise InvalidParameter(
                "max_tokens is 0: nothing would come back. Ask for at least 1, or set echo.", "max_tokens"
            )
        if body.stream and body.prompt_logprobs is not None:
            raise InvalidParameter(
                "prompt_logprobs are not streamed. Leave out stream, or use echo with logprobs.", "prompt_logprobs"
            )
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        self._generation = Generation(
            service,
            "cmpl",
            body,
            body.prompts,
            sampling_params(
                body,
                max_tokens=max(max_tokens, 1),
                logprobs=body.logprobs,
                prompt_logprobs=_num_prompt_logprobs(body),
                structured=structured_output(body),
                logits_processors=service.extensions.processors(body.logits_processors),
            ),
            add_special_tokens=body.add_special_tokens is not False,
            discards_output=is_prompt_only,
        )
        tokenizer = service.engine.tokenizer
        self._prompts = [
            EchoedPrompt(tokenizer, body, prompt, request.prompt_token_ids)
            for prompt, request in zip(body.prompts, self._generation.requests, strict=True)
        ]
        self._choices = [
            ChoiceWriter(tokenizer, body, prompt, index * body.num_choices + j)
            for index, prompt in enumerate(self._prompts)
            for j in range(body.num_choices)
        ]

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the chunks as events: each choice's text as it grows."""
        async with aclosing(self._pieces()) as groups:
            async for pieces in groups:
                chunks = [self._response([piece]) for piece in pieces]
                for chunk in chunks:
                    self._reports.attach(chunk, self._generation)
                yield "".join(map(event, chunks))
        if self._reports.in_last_chunk:
            yield event(self._response([], self._generation.usage()))
        yield DONE

    async def response(self) -> CompletionResponse:
        """Wait for all choices and answer with them in the order of their index."""
        parts: list[list[CompletionChoice]] = [[] for _ in self._choices]
        async with aclosing(self._pieces()) as groups:
            async for pieces in groups:
                for piece in pieces:
                    parts[piece.index].append(piece)
        choices = [_join(choice_parts) for choice_parts in parts]
        if self.body.prompt_logprobs is not None:
            for choice in choices:
                choice.prompt_logprobs = prompt_logprobs(self._prompts[choice.index // self.body.num_choices].positions)
        return self._response(choices, self._generation.usage())

    async def _pieces(self) -> AsyncGenerator[list[CompletionChoice], None]:
        """Yield what there is to show, as it comes."""
        async with aclosing(self._generation.deltas()) as groups:
            async for deltas in groups:
                for delta in deltas:
                    if delta.prompt_logprobs is not None:
                        self._prompts[delta.index // self.body.num_choices].positions = delta.prompt_logprobs
                pieces = [piece for delta in deltas if (piece := self._choices[delta.index].write(delta)) is not None]
                if pieces:
                    yield pieces

    def _response(self, choices: list[CompletionChoice], usage: Usage | None = None) -> CompletionResponse:
        response = CompletionResponse(
            id=self._generation.id,
            object="text_completion",
            created=self._generation.created,
            model=self._generation.model,
            choices=choices,
        )
        if usage is not None:
            response.usage = usage
        return response


class EchoedPrompt:
    """A prompt as ``echo`` shows it. ``positions`` are its logprobs, once they came."""

    def __init__(
        self, tokenizer: Tokenizer, body: CompletionRequest, prompt: str | list[int], token_ids: list[int]
    ) -> None:
        self.token_ids = token_ids
        self.positions: PromptPositions = []
        is_whole_text = isinstance(prompt, str) and body.truncate_prompt_tokens is None
        self.text = (
            prompt
            if isinstance(prompt, str) and is_whole_text
            else tokenizer.decode(token_ids, skip_special_tokens=body.skip_special_tokens is not False)
        )

    def scored_tokens(self) -> list[ScoredToken]:
        """Return the tokens with their logprobs; the first has none."""
        return list(map(ScoredToken, self.token_ids, self.positions))


class ChoiceWriter:
    """Turns the deltas of one choice into what is shown of it."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, prompt: EchoedPrompt, index: int) -> None:
        self._index = index
        self._unwritten_prompt = prompt if body.echo else None
        self._scored: ScoredTokens | None = None
        if body.logprobs is not None:
            self._scored = ScoredTokens(tokenizer, body)
            self._columns = CompletionColumns(tokenizer, body)

    def write(self, delta: ChoiceDelta) -> CompletionChoice | None:
        """Return what ``delta`` shows, the echoed prompt first of all; None when that is nothing yet."""
        text = delta.text
        columns: list[CompletionLogprobs] = []
        prompt, self._unwritten_prompt = self._unwritten_prompt, None
        if prompt is not None:
            text = prompt.text + text
        if self._scored is not None:
            if prompt is not None:
                columns.append(self._columns.echoed(prompt.scored_tokens(), prompt.text))
            columns.append(self._columns.generated(self._scored.release(delta)))
        if not text and delta.finish_reason is None and not any(part.tokens for part in columns):
            return None
        return CompletionChoice(
            index=self._index,
            text=text,
            logprobs=join_columns(columns) if columns else None,
            finish_reason=delta.finish_reason,  # type: ignore[arg-type]  # pydantic checks it
            stop_reason=delta.stop_reason,
        )


def _num_prompt_logprobs(body: CompletionRequest) -> int | None:
    wanted = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((number for number in wanted if number is not None), default=None)


def _join(pieces: Sequence[CompletionChoice]) -> CompletionChoice:
    last = pieces[-1]
    columns = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return CompletionChoice(
        index=last.index,
        text="".join(piece.text for piece in pieces),
        logprobs=join_columns(columns) if columns else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )
