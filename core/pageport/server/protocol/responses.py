"""``/v1/responses``: request, response, events of a stream."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pageport.engine.limits import MAX_LOGPROBS
from pageport.server.protocol.chat import MAX_TOOLS, FunctionName, TokenLogprob
from pageport.server.protocol.common import GenerationFields, Payload

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputPart(BaseModel):
    """One part of a message's content; ``type`` says which of the others counts."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(BaseModel):
    """One item of the input: a message, a call of a function, or what the function gave back.

    What an answer's items have besides is not needed again.
    """

    model_config = ConfigDict(extra="ignore")

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class FunctionTool(BaseModel):
    """What chat completions call a tool, in a flatter form. There are no other tools here."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: Payload | None = None
    strict: bool | None = None


class FunctionToolChoice(BaseModel):
    """The one function that has to be called."""

    type: Literal["function"]
    name: FunctionName


class TextOptions(BaseModel):
    """``text``. ``format`` is what chat completions call ``response_format``, in a flatter form."""

    format: Payload | None = None
    verbosity: str | None = None


class ResponseRequest(GenerationFields):
    """Body of ``POST /v1/responses``."""

    input: Annotated[str | list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: Annotated[bool | None, Field(description="Keep the answer for previous_response_id; default: true.")] = None
    max_output_tokens: Annotated[int | None, Field(ge=1)] = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    include: list[str] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: Literal["none", "auto", "required"] | FunctionToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    prompt: Annotated[Payload | None, Field(description="A stored template; there are none here.")] = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Payload] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(BaseModel):
    """What the model thought before it answered. Nobody sums it up."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[Payload] = []
    status: Status
    content: list[ReasoningText]


class FunctionCallItem(BaseModel):
    """A call that the model makes. An input item with the same ``call_id`` tells it what came of it."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str
    status: Status


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseFailure(BaseModel):
    code: Literal["server_error"]
    message: str


class InputTokensDetails(BaseModel):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(BaseModel):
    """An answer, finished or not; fields of requests are shown as they hold."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    instructions: str | None
    previous_response_id: str | None
    store: bool
    max_output_tokens: int | None
    temperature: float
    top_p: float
    top_logprobs: int
    text: Payload
    metadata: dict[str, str]
    tools: list[FunctionTool] = []
    tool_choice: Literal["none", "auto", "required"] | FunctionToolChoice = "auto"
    parallel_tool_calls: bool = True
    truncation: Literal["disabled"] = "disabled"
    background: Literal[False] = False


class InputText(BaseModel):
    type: Literal["input_text"] = "input_text"
    text: str


class InputMessage(BaseModel):
    """A message of the conversation that an answer ends."""

    id: str
    type: Literal["message"] = "message"
    role: str
    status: Literal["completed"] = "completed"
    content: list[InputText | OutputText]


class FunctionCallOutputItem(BaseModel):
    """What a function gave back."""

    id: str
    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str
    status: Literal["completed"] = "completed"


ConversationItem = InputMessage | FunctionCallItem | FunctionCallOutputItem


class InputItemList(BaseModel):
    """One page; the next one begins after ``last_id``."""

    object: Literal["list"] = "list"
    data: list[ConversationItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokenCount(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class ResponseEvent(BaseModel):
    """One event; ``sequence_number`` counts them."""

    type: str
    sequence_number: int


class SnapshotEvent(ResponseEvent):
    response: ResponseObject


class ItemEvent(ResponseEvent):
    output_index: int
    item: OutputItem


class ContentEvent(ResponseEvent):
    """About the one part that a message, or what was thought, has."""

    item_id: str
    output_index: int
    content_index: int = 0


class PartEvent(ContentEvent):
    part: OutputText | ReasoningText


class TextDeltaEvent(ContentEvent):
    delta: str
    logprobs: list[TokenLogprob]


class TextDoneEvent(ContentEvent):
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDeltaEvent(ContentEvent):
    delta: str


class ReasoningDoneEvent(ContentEvent):
    text: str


class ArgumentsDeltaEvent(ResponseEvent):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDoneEvent(ResponseEvent):
    item_id: str
    output_index: int
    name: str
    arguments: str
