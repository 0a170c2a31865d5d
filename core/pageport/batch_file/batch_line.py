"""``read_batch_file``: the requests of a file, and what is wrong with its other lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.errors import ConfigurationError

# The routes a line may name. What they stream, nobody could read.
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """One line; with a ``problem``, it cannot be sent."""

    number: int  # from 1
    custom_id: str | None
    path: str = ""
    body: bytes = b""
    problem: str | None = None


def read_batch_file(path: Path) -> Iterator[BatchLine]:
    """Yield the lines in order; empty ones are left out.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _parse(number, text)
    except OSError as error:
        raise ConfigurationError(f"The batch file {path} cannot be read: {error.strerror}.") from error


def require_unique_ids(path: Path) -> int:
    """Return the number of lines.

    Raises:
        ConfigurationError: the file cannot be read, holds no request, or two lines have one ``custom_id``.
    """
    first_lines: dict[str, int] = {}
    num_lines = 0
    for line in read_batch_file(path):
        num_lines += 1
        if line.custom_id is None:
            continue
        first = first_lines.setdefault(line.custom_id, line.number)
        if first != line.number:
            raise ConfigurationError(
                f"The custom_id {line.custom_id!r} is on lines {first} and {line.number} of {path}: the answers could "
                "not be told apart. Give each line its own."
            )
    if not num_lines:
        raise ConfigurationError(f"The batch file {path} holds no request.")
    return num_lines


def _parse(number: int, text: str) -> BatchLine:
    def wrong(problem: str, custom_id: str | None = None) -> BatchLine:
        return BatchLine(number=number, custom_id=custom_id, problem=problem)

    try:
        fields = json.loads(text)
    except ValueError as error:
        return wrong(f"The line is no JSON: {error}.")
    if not isinstance(fields, dict):
        return wrong("The line is no JSON object.")
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        return wrong("custom_id is missing, empty or no text.")
    problem = _problem(fields)
    if problem is not None:
        return wrong(problem, custom_id)
    try:
        body = json.dumps(fields["body"], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return wrong("The line is not UTF-8.", custom_id)
    return BatchLine(number=number, custom_id=custom_id, path=fields["url"], body=body)


def _problem(fields: dict[str, Any]) -> str | None:
    method, url, body = fields.get("method", "POST"), fields.get("url"), fields.get("body")
    if method != "POST":
        return f"method is {ascii(method)[:40]}; use POST."
    if url not in PATHS:
        return f"url is {ascii(url)[:80]}; use one of {', '.join(PATHS)}."
    if not isinstance(body, dict):
        return "body is no JSON object."
    return "body asks for a stream, which a file cannot hold. Leave out stream." if body.get("stream") else None
