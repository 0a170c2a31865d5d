"""``--backend-option key=value``, as a command that opens a backend itself reads it."""

from collections.abc import Sequence

from pageport.errors import ConfigurationError


def read_backend_options(pairs: Sequence[str]) -> dict[str, str]:
    """Return the options by name.

    Raises:
        ConfigurationError: one is no pair.
    """
    wrong = [pair for pair in pairs if not pair.partition("=")[1]]
    if wrong:
        raise ConfigurationError(f"--backend-option {wrong[0]!r} is no key=value pair.")
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
