"""What the completion and chat endpoints share: sampling fields, usage, streaming options."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from pageport.engine.limits import (
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from pageport.server.protocol.body import RequestBody

# Documented caps besides the engine's: each bounds work that a small body could otherwise cause.
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_CACHE_SALT_CHARACTERS = 1024
MAX_LOGITS_PROCESSORS = 16
MAX_PROCESSOR_NAME_CHARACTERS = 256

StopString = Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]


class StreamOptions(BaseModel):
    """``stream_options``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(BaseModel):
    """``response_format.json_schema``. The schema is followed whether or not ``strict`` is set."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """``response_format``: the form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """``structured_outputs``: exactly one of the first five. ``grammar`` is in Lark's syntax."""

    model_config = ConfigDict(extra="allow")

    json_: Annotated[dict[str, Any] | bool | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None


ProcessorName = Annotated[str, Field(min_length=1, max_length=MAX_PROCESSOR_NAME_CHARACTERS)]


class ProcessorCall(BaseModel):
    """A logits processor of a plugin, and its arguments."""

    name: ProcessorName
    arguments: dict[str, Any] | None = None


class GenerationFields(RequestBody):
    """Fields of both endpoints. None is what an absent field and an explicit null both mean: the default."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Annotated[int | None, Field(ge=1)] = None
    best_of: Annotated[int | None, Field(ge=1)] = None
    max_tokens: Annotated[int | None, Field(ge=0)] = None
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Annotated[list[StrictInt] | None, Field(max_length=MAX_ALLOWED_TOKEN_IDS)] = None
    logits_processors: Annotated[
        list[ProcessorName | ProcessorCall] | None,
        Field(max_length=MAX_LOGITS_PROCESSORS, description="Processors that plugins bring, by name."),
    ] = None
    bad_words: Annotated[list[StopString] | None, Field(max_length=MAX_BAD_WORDS)] = None

    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[StrictInt] | None, Field(max_length=MAX_STOP_TOKEN_IDS)] = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None

    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1)] = None
    add_special_tokens: bool | None = None
    echo: bool | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Annotated[
        dict[str, Any] | bool | str | None, Field(description="Older name of structured_outputs.json.")
    ] = None
    guided_regex: Annotated[str | None, Field(description="Older name of structured_outputs.regex.")] = None
    guided_choice: Annotated[list[str] | None, Field(description="Older name of structured_outputs.choice.")] = None
    guided_grammar: Annotated[str | None, Field(description="Older name of structured_outputs.grammar.")] = None

    use_beam_search: bool | None = None
    length_penalty: float | None = None

    timeout: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False, description="Seconds after which the request is given up.")
    ] = None
    priority: int | None = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)] = None

    @property
    def num_choices(self) -> int:
        return self.n or 1


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """Tokens of a whole request: each prompt is counted once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class PromptLogprob(BaseModel):
    """One candidate of one prompt position, in ``prompt_logprobs`` keyed by token id."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = Sequence[dict[int, PromptLogprob] | None]
Payload = dict[str, Any]
