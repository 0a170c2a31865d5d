"""``/v1/chat/completions``: request, response, chunk."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pageport.engine.limits import MAX_LOGPROBS
from pageport.server.protocol.common import GenerationFields, Payload, PromptLogprobs, Usage
from pageport.server.protocol.completions import FinishReason


class ContentPart(BaseModel):
    """One part of a message's content; ``type`` decides which other field counts."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(BaseModel):
    """One message. Fields that only the model's template knows are kept for it."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Payload] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``. ``max_completion_tokens`` wins over ``max_tokens``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=0)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: list[Payload] | None = None
    tool_choice: str | Payload | None = None
    response_format: Payload | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[Payload] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TopLogprob(BaseModel):
    """A candidate. ``token`` is ``bytes:\\x..`` where the bytes alone are no text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None = None


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None


class ChatDelta(BaseModel):
    """What a chunk adds: the role first, then content; nothing in the chunk that ends the choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
