"""``AccessLog``: one line for each request, when it is over."""

import logging

from pageport.engine.log import with_fields
from pageport.server.drain import PROBES
from pageport.server.errors import quote
from pageport.server.request_record import GenerationRecord, RequestRecord

logger = logging.getLogger(__name__)

# What probes, scrapers and an open page ask for all day; their successes are written for debugging only.
QUIET_ROUTES = PROBES | {"/engine"}


class AccessLog:
    """Writes who asked for what, how it ended, what it took; never a key, and prompts only where ``shows_prompts``."""

    def __init__(self, *, shows_prompts: bool) -> None:
        self._shows_prompts = shows_prompts

    def observe(self, record: RequestRecord) -> None:
        """Write the line of a request that is over."""
        level = logging.DEBUG if record.route in QUIET_ROUTES and record.status == 200 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        generation = record.generation
        fields = with_fields(
            method=record.method,
            route=record.route,
            path=quote(record.path) if record.route == "none" else None,
            status=record.status,
            request_id=record.request_id,
            client=record.client,
            total_s=_seconds(record.started, record.ended),
        )
        if generation is not None:
            fields["fields"] |= with_fields(
                response_id=generation.response_id,
                prompt_tokens=generation.num_prompt_tokens,
                cached_tokens=generation.num_cached_tokens,
                completion_tokens=generation.num_generated_tokens,
                queued_s=_rounded(generation.queued_s),
                first_token_s=_seconds(record.started, generation.first_token_at),
                finish_reason=_finish_reason(generation),
                prompts=list(generation.prompts) if self._shows_prompts else None,
            )["fields"]
        logger.log(level, "Request", extra=fields)


def _finish_reason(generation: GenerationRecord) -> str:
    """Say why it ended; the reasons of several choices stand side by side, each once."""
    if generation.error is not None:
        return "error"
    return ",".join(sorted(set(generation.finish_reasons.values()))) if generation.is_finished else "abort"


def _seconds(since: float, until: float | None) -> float | None:
    return None if until is None else _rounded(until - since)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
