"""``check_limits``: the settings that bound what one request may ask for."""

from pydantic import BaseModel

from pageport.errors import InvalidParameter
from pageport.server.config import ServerConfig


def check_limits(body: BaseModel, config: ServerConfig) -> None:
    """Refuse what asks for more than the settings allow, before any of it is looked at.

    Raises:
        InvalidParameter: names the field, the limit, and the option that raises it.
    """
    _check(body, "n", config.max_n, "max-n")
    _check(body, "best_of", config.max_n, "max-n")
    _check(body, "stop", config.max_stop_strings, "max-stop-strings")
    _check(body, "logit_bias", config.max_logit_biases, "max-logit-biases")
    _check(body, "prompt", config.max_prompts, "max-prompts")
    _check(body, "input", config.max_prompts, "max-prompts")


def _check(body: BaseModel, name: str, limit: int, option: str) -> None:
    size = _size(getattr(body, name, None))
    if size > limit:
        raise InvalidParameter(
            f"{name} asks for {size}; this server allows {limit} (--{option}). Ask for less, or in several requests.",
            name,
        )


def _size(value: object) -> int:
    """Count what a field asks for; a text or a list of token ids is one prompt."""
    match value:
        case int():
            return value
        case dict():
            return len(value)
        case list() if value and not isinstance(value[0], int):
            return len(value)
        case _:
            return 0
