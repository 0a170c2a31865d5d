"""``/v1/completions``: request, response, chunk."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from pageport.engine.limits import MAX_LOGPROBS
from pageport.server.protocol.common import GenerationFields, PromptLogprobs, Usage

FinishReason = Literal["stop", "length", "abort", "timeout"]


def check_prompt(value: Any) -> Any:
    """Refuse what is neither text nor token ids; a bool is no token id."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        kinds = {type(item) for item in value}
        if kinds in ({str}, {int}):
            return value
        if kinds == {list} and all(type(token_id) is int for item in value for token_id in item):
            return value
    raise ValueError("a prompt is a string, a list of strings, a list of token ids or a list of lists of token ids")


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], BeforeValidator(check_prompt)]


def one_by_one(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Return each text or list of token ids of a field that takes one or several."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token_id for token_id in prompt if isinstance(token_id, int)]]
    return [one for one in prompt if not isinstance(one, int)]


class CompletionRequest(GenerationFields):
    """Body of ``POST /v1/completions``."""

    prompt: Prompt
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one, in the order of their choices."""
        return one_by_one(self.prompt)


class CompletionLogprobs(BaseModel):
    """Columns, one entry a token. The first token of an echoed prompt has no logprob."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None


class CompletionResponse(BaseModel):
    """The whole answer, and each chunk of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
