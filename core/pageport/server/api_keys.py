"""``ApiKey``: what a client shows, and the name that it has in our log."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig, clean_key

# ``NAME: KEY``; a key is unlikely to look like this by itself.
NAMED = re.compile(r"([A-Za-z0-9._@-]{1,64}):[ \t]+(.+)", re.DOTALL)


class ApiKey(NamedTuple):
    """``name`` is told to logs and traces in the place of ``key``."""

    name: str
    key: str


def read_api_keys(config: ServerConfig) -> tuple[ApiKey, ...]:
    """Return the keys of the settings and of the file; none: the server is open.

    Raises:
        ConfigurationError: the file cannot be read or holds no key, which would open the server to everybody.
    """
    written = [clean_key(key) for key in config.api_key]
    return _named(written if config.api_key_file is None else [*written, *_read_lines(config.api_key_file)])


def _read_lines(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(
            f"The API keys in {file} cannot be read: {reason}. Name a text file with one key a line."
        ) from error
    keys = [key for line in lines if (key := clean_key(line))]
    if not keys:
        raise ConfigurationError(f"{file} holds no API key. Write one a line, or leave the file out.")
    return keys


def _named(written: Iterable[str]) -> tuple[ApiKey, ...]:
    """Tell names from keys; a key without a name is called by its place."""
    keys = []
    for number, text in enumerate(written, 1):
        match = NAMED.fullmatch(text)
        keys.append(ApiKey(match[1], match[2]) if match else ApiKey(f"key-{number}", text))
    return tuple(keys)
