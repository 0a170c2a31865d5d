"""``pageport serve``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pageport.config import EngineConfig
from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig


def serve(settings: Mapping[str, Any]) -> None:
    """Split the settings between engine and server, and serve until stopped.

    Raises:
        ConfigurationError: the server's packages are not installed.
    """
    try:
        from pageport.server.run import run_server
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("pageport"):
            raise
        raise ConfigurationError(
            f"The server needs the package {error.name}. Install it with: pip install 'pageport[server]'."
        ) from error
    names = {field.name for field in fields(ServerConfig)}
    server = ServerConfig(**{k: v for k, v in settings.items() if k in names})
    run_server(EngineConfig.from_flat(**{k: v for k, v in settings.items() if k not in names}), server)
