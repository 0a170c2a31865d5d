"""``pageport serve``."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pageport.config import EngineConfig
from pageport.server.config import ServerConfig
from pageport.server.run import run_server


def serve(settings: Mapping[str, Any]) -> None:
    """Split the settings between engine and server, and serve until stopped."""
    names = {field.name for field in fields(ServerConfig)}
    server = ServerConfig(**{k: v for k, v in settings.items() if k in names})
    run_server(EngineConfig.from_flat(**{k: v for k, v in settings.items() if k not in names}), server)
