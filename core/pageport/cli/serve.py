"""``pageport serve``."""

import os
import threading
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
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # Some thread is inside a tokenizer, which nothing interrupts: the interpreter would wait for it.
        os._exit(0)
