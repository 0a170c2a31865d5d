"""``--backend-option key=value``, as whoever opens a backend reads it."""

from collections.abc import Sequence

from pageport.errors import ConfigurationError


def read_backend_options(pairs: Sequence[str]) -> dict[str, str]:
    """Return the options by name.

    Raises:
        ConfigurationError: one is no pair.
    """
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"--backend-option {pair!r} is no key=value pair.")
        options[key] = value
    return options
