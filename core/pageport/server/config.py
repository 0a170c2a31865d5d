"""``ServerConfig``: how the HTTP server listens and whom it serves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pageport.config import setting
from pageport.engine.limits import MAX_STOP_STRINGS
from pageport.errors import ConfigurationError

# Bounds of which zero would serve nobody.
POSITIVE = (
    "max_choices",
    "max_prompts",
    "max_n",
    "max_stop_strings",
    "max_logit_biases",
    "max_body_bytes",
    "max_queued_tokens",
    "max_stored_response_bytes",
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP side; what the model and the engine do is in ``EngineConfig``."""

    host: str = setting("127.0.0.1", "Address to listen on; the default is reached from this machine only.")
    port: int = setting(8000, "TCP port; 0: any free one.")
    api_key: tuple[str, ...] = setting(
        (), "Key that clients must send as a bearer token; may be repeated. Without any, nobody is asked."
    )
    api_key_file: str | None = setting(
        None, "File of further keys, one a line; unlike --api-key it does not show in the list of processes."
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
    max_prompts: int = setting(2048, "Most prompts in one request.")
    max_n: int = setting(128, "Most choices per prompt (n, best_of).")
    max_stop_strings: int = setting(
        MAX_STOP_STRINGS,
        f"Most stop strings in one request; the engine takes {MAX_STOP_STRINGS}, since each is looked for in all "
        "that is generated.",
    )
    max_logit_biases: int = setting(1024, "Most logit_bias entries in one request; each costs time at every token.")
    max_body_bytes: int = setting(
        8 * 1024 * 1024, "Longest request body; a longer one is refused with 413 before it is all read."
    )
    max_queued_tokens: int | None = setting(
        None,
        "More prompt tokens than this that still wait for their first answer are refused with 503; a prompt that is "
        "longer runs alone. Default: no bound but --max-queued-requests.",
    )
    max_stored_responses: int = setting(
        1000, "Answers of /v1/responses that are kept for previous_response_id; the oldest goes first. 0: none."
    )
    max_stored_response_bytes: int = setting(
        64 * 1024 * 1024, "Memory for the text of the kept answers and their conversations; the oldest goes first."
    )
    strict_requests: bool = setting(False, "Refuse unknown request fields with 400, where else they are logged.")
    tool_format: Literal["auto", "hermes", "llama3_json", "mistral", "none"] = setting(
        "auto",
        "How the model writes tool calls; auto: as the chat template shows it; none: requests with tools are refused.",
    )
    reasoning_format: Literal["auto", "think", "none"] = setting(
        "auto",
        "How the model marks its reasoning, which is then told apart from the answer; auto: as the chat template "
        "shows it; none: it stays in the answer. Stop strings end the output within reasoning too.",
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
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name.replace('_', '-')} is {value}; use at least 1.")
        if self.max_stop_strings > MAX_STOP_STRINGS:
            raise ConfigurationError(
                f"max-stop-strings is {self.max_stop_strings}; the engine takes {MAX_STOP_STRINGS}. Lower it."
            )
        if self.max_stored_responses < 0:
            raise ConfigurationError(f"max-stored-responses is {self.max_stored_responses}; use 0 to keep none.")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigurationError(f"root-path is {self.root_path!r}; it must start with / and not end with /.")

    def read_api_keys(self) -> tuple[str, ...]:
        """Return the keys of the settings and of the file; none: the server is open.

        Raises:
            ConfigurationError: the file cannot be read or holds no key, which would open the server to everybody.
        """
        if self.api_key_file is None:
            return self.api_key
        try:
            lines = Path(self.api_key_file).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(
                f"The API keys in {self.api_key_file} cannot be read: {reason}. Name a text file with one key a line."
            ) from error
        keys = tuple(key for line in lines if (key := clean_key(line)))
        if not keys:
            raise ConfigurationError(f"{self.api_key_file} holds no API key. Write one a line, or leave the file out.")
        return self.api_key + keys


def clean_key(key: str) -> str:
    """Strip what editors leave around a key in a file: a byte order mark, line ends, blanks."""
    return key.strip("\ufeff \t\r\n")
