"""The log of a process of ours: lines on stderr, for people or for programs."""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pageport.errors import ConfigurationError

LogFormat = Literal["text", "json"]

LEVEL_VARIABLE = "PAGEPORT_LOG_LEVEL"
FORMAT_VARIABLE = "PAGEPORT_LOG_FORMAT"


def open_log(log_format: LogFormat | None = None) -> None:
    """Write to stderr what is at least as grave as ``PAGEPORT_LOG_LEVEL`` (default: INFO).

    Args:
        log_format: how; processes that this one starts write the same. None: as the one that started this one, or text.

    Raises:
        ConfigurationError: there is no such level.
    """
    if log_format is not None:
        os.environ[FORMAT_VARIABLE] = log_format
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigurationError(f"{LEVEL_VARIABLE} is {level!r}; use DEBUG, INFO, WARNING or ERROR.")
    is_json = os.environ.get(FORMAT_VARIABLE) == "json"
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    logging.captureWarnings(is_json)


def with_fields(**fields: Any) -> dict[str, Any]:
    """Return the ``extra`` of a log call whose line shows ``fields`` too; those that are None are left out."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


class TextFormatter(logging.Formatter):
    """``LEVEL message name=value …``."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        shown = [f" {name}={_as_word(value)}" for name, value in _fields(record).items()]
        return super().formatMessage(record) + "".join(shown)


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII; what a line is about stands in fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process_id": record.process,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _as_word(value: Any) -> str:
    """Write a value so that it ends at the next blank."""
    word = f"{value:.4g}" if isinstance(value, float) else str(value)
    is_plain = word and word.isascii() and word.isprintable() and not set(word) & set(' "=')
    return word if is_plain else json.dumps(word)
