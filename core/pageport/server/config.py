"""``ServerConfig``: how the HTTP server listens and whom it serves."""

from dataclasses import dataclass

from pageport.config import setting
from pageport.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP side; what the model and the engine do is in ``EngineConfig``."""

    host: str = setting("127.0.0.1", "Address to listen on; the default is reached from this machine only.")
    port: int = setting(8000, "TCP port; 0: any free one.")
    api_key: tuple[str, ...] = setting(
        (), "Key that clients must send as a bearer token; may be repeated. Without any, nobody is asked."
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "Web origin whose pages may call the server (CORS), or *; may be repeated. Default: none."
    )
    root_path: str = setting("", "Path prefix that a reverse proxy strips before it forwards.")
    uvicorn_log_level: str = setting("info", "Log level of the HTTP server.")
    disable_log_requests: bool = setting(
        False, "Do not write one line per HTTP request.", "--disable-uvicorn-access-log"
    )
    max_choices: int = setting(
        2048, "Most choices (prompts times n) one request may ask for; more would starve everybody else."
    )
    stall_timeout: float = setting(
        8.0,
        "Seconds without a finished step, while work is pending, after which /health answers 503; where steps take "
        "longer, four times the longest one.",
    )
    restart_engine: bool = setting(
        True, "Start the engine's process again when it dies, ever later; --no-restart-engine: end with it."
    )
    shutdown_timeout: float = setting(0.5, "Seconds that running requests get to finish after the signal to stop.")
    trust_request_chat_template: bool = setting(
        False, "Accept chat_template in requests; off, since a template is a program that clients would run here."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port is {self.port}; use 0 to 65535.")
        if any(not clean_key(key) for key in self.api_key):
            raise ConfigurationError("An api-key is empty. Leave --api-key out to serve without keys.")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigurationError(f"root-path is {self.root_path!r}; it must start with / and not end with /.")


def clean_key(key: str) -> str:
    """Strip what editors leave around a key in a file: a byte order mark, line ends, blanks."""
    return key.strip("\ufeff \t\r\n")
