"""``/v1/chat/completions``: request, response, chunk."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pageport.engine.limits import MAX_LOGPROBS
from pageport.server.protocol.common import GenerationFields, Payload, PromptLogprobs, Usage
from pageport.server.protocol.completions import FinishReason

# Documented caps: each bounds what a small body could otherwise cost. OpenAI takes 128 tools and 64 characters.
MAX_TOOLS = 1024
MAX_FUNCTION_NAME_CHARACTERS = 256

FunctionName = Annotated[str, Field(min_length=1, max_length=MAX_FUNCTION_NAME_CHARACTERS)]
# ``tool_calls``: the model ended the answer, and called.
ChatFinishReason = FinishReason | Literal["tool_calls"]


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


class FunctionDefinition(BaseModel):
    """What the model is told of a function; ``parameters`` is the JSON schema of the object of its arguments."""

    model_config = ConfigDict(extra="allow")

    name: FunctionName
    description: str | None = None
    parameters: Payload | None = None
    strict: bool | None = None


class Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(BaseModel):
    name: FunctionName


class NamedToolChoice(BaseModel):
    """The one function that has to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(GenerationFields):
    """Body of ``POST /v1/chat/completions``. ``max_completion_tokens`` wins over ``max_tokens``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=0)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

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


class FunctionCall(BaseModel):
    """``arguments`` is what the model wrote: JSON, unless it erred or was cut off."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(BaseModel):
    """``content`` is null where there is nothing but reasoning and calls. The reasoning goes by both its names."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: int | str | None = None


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class ChatUsage(Usage):
    """``completion_tokens_details`` where the model may reason: markers count as reasoning."""

    completion_tokens_details: CompletionTokensDetails | None = None


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage | Usage
    prompt_logprobs: PromptLogprobs | None = None


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """More of the call ``index``: its id, type and name come first and once, then its arguments in pieces."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(BaseModel):
    """What a chunk adds: the role first, then the answer's parts; nothing in the chunk that ends the choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: int | str | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: ChatUsage | Usage | None = None
