"""``Service``: what every route needs."""

import logging
from dataclasses import dataclass, field
from typing import TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, ValidationError

from pageport.engine.async_engine import AsyncEngine
from pageport.errors import InvalidParameter
from pageport.server.config import ServerConfig
from pageport.server.errors import UnknownModel, invalid_body, quote
from pageport.server.metrics import Metrics
from pageport.server.protocol.common import GenerationFields

logger = logging.getLogger(__name__)

# Fields that change nothing here, and whose absence no client would notice.
HARMLESS_FIELDS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
# Fields that would change the answer; ignoring one would answer another question.
UNSUPPORTED_FIELDS = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "logprob_token_ids",
        "logits_processors",
        "mm_processor_kwargs",
        "prompt_embeds",
        "repetition_detection",
        "response_format",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "structured_outputs",
        "suffix",
        "thinking_token_budget",
        "truncation_side",
        "web_search_options",
    }
)
# Names are chosen by clients: remember only so many.
MAX_REMEMBERED_FIELDS = 256

Body = TypeVar("Body", bound=GenerationFields)


@dataclass(frozen=True, kw_only=True)
class Service:
    """One application's engine, settings and counters."""

    engine: AsyncEngine
    config: ServerConfig
    metrics: Metrics
    created: int  # Unix time, seconds
    _ignored_fields: set[str] = field(default_factory=set)

    @property
    def model_name(self) -> str:
        return self.engine.info.model_name

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Read and check the JSON body of ``request``.

        The content type is not looked at; bytes that are not UTF-8 and lone surrogates are refused.

        Raises:
            InvalidParameter: the body is no JSON object, or a field is wrong or not supported.
            UnknownModel: the model is not served here. An absent or null model means the one that is.
        """
        try:
            body = kind.model_validate_json(await request.body())
        except ValidationError as error:
            raise invalid_body(error) from None
        if body.model is not None and body.model != self.model_name:
            raise UnknownModel(body.model, self.model_name)
        self._check_extra_fields(body)
        return body

    def _check_extra_fields(self, body: BaseModel) -> None:
        for name, value in (body.model_extra or {}).items():
            if name in HARMLESS_FIELDS or value is None:
                continue
            if name in UNSUPPORTED_FIELDS:
                # An empty value asks for nothing.
                if value:
                    raise not_supported(name)
            elif name not in self._ignored_fields and len(self._ignored_fields) < MAX_REMEMBERED_FIELDS:
                self._ignored_fields.add(name)
                logger.warning("Ignoring the unknown request field %s.", quote(name))


def not_supported(field_name: str, what: str = "") -> InvalidParameter:
    """Say that a field is understood but cannot be honoured yet; ``what`` is its value, when others can be."""
    asked = f"{field_name} {what}" if what else field_name
    return InvalidParameter(f"{asked} is not supported yet. Leave it out.", field_name)


def service_of(request: Request) -> Service:
    """Return the service of the application that got ``request``."""
    return cast(Service, request.app.state.service)
