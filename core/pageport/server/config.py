"""``ServerConfig``: how the HTTP server listens and whom it serves."""

from dataclasses import dataclass
from typing import Literal

from pageport.config import setting
from pageport.engine.limits import MAX_STOP_STRINGS
from pageport.errors import ConfigurationError
from pageport.text.tool_calls.tool_format_plugins import require_tool_format

# Bounds of which zero would serve nobody.
POSITIVE = (
    "max_choices",
    "max_prompts",
    "max_n",
    "max_stop_strings",
    "max_logit_biases",
    "max_body_bytes",
    "max_requests_per_client",
    "max_queued_tokens",
    "max_stored_response_bytes",
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of the HTTP side; what the model and the engine do is in ``EngineConfig``."""

    host: str = setting("127.0.0.1", "Address to listen on; the default is reached from this machine only.")
    port: int = setting(8000, "TCP port; 0: any free one.")
    uds: str | None = setting(
        None, "Path of a unix socket to listen on, in the place of host and port; the umask says who may connect."
    )
    ssl_certfile: str | None = setting(
        None, "PEM file of the server's certificate and those that lead to a known authority; HTTPS is spoken then."
    )
    ssl_keyfile: str | None = setting(None, "PEM file of its private key; default: in the certificate's file.")
    ssl_ca_certs: str | None = setting(
        None, "PEM file of authorities; clients must show a certificate of one of them. Default: they need none."
    )
    api_key: tuple[str, ...] = setting(
        (),
        "Key that clients must send as a bearer token, or NAME: KEY, where the name is what logs show; may be "
        "repeated. Without any, nobody is asked.",
    )
    api_key_file: str | None = setting(
        None, "File of further keys, one a line; unlike --api-key it does not show in the list of processes."
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "Web origin whose pages may call the server (CORS), or *; may be repeated. Default: none."
    )
    root_path: str = setting("", "Path prefix that a reverse proxy strips before it forwards.")
    log_format: Literal["text", "json"] = setting(
        "text", "Lines of the log, for people or, with json, for programs: one object a line."
    )
    uvicorn_log_level: Literal["critical", "error", "warning", "info", "debug", "trace"] = setting(
        "info", "Log level of the HTTP server."
    )
    disable_log_requests: bool = setting(
        False,
        "Do not write one line per HTTP request, with its tokens and times. Successful probes are never written.",
        "--disable-uvicorn-access-log",
    )
    log_prompts: bool = setting(
        False, "Write the prompts into those lines; off, since what people ask is not for who reads logs."
    )
    otlp_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request; needs "
        "'pageport[otel]'. OTEL_* variables set the rest. Default: no traces.",
        "--otlp-traces-endpoint",
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
    max_requests_per_client: int | None = setting(
        None,
        "Requests that one API key, or one address where there are no keys, may have open at once; more are refused "
        "with 429. Default: no bound but those of all clients together.",
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
    tool_format: str = setting(
        "auto",
        "How the model writes tool calls: hermes, llama3_json, mistral, or a format that a plugin brings; auto: as the "
        "chat template shows it; none: requests with tools are refused.",
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
    drain_timeout: float = setting(
        30.0,
        "Seconds that running requests get to finish after SIGTERM, while new ones are refused; SIGINT and a second "
        "SIGTERM end them at once.",
        "--shutdown-timeout",
    )
    trust_request_chat_template: bool = setting(
        False, "Accept chat_template in requests; off, since a template is a program that clients would run here."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port is {self.port}; use 0 to 65535.")
        if self.tool_format not in ("auto", "none"):
            require_tool_format(self.tool_format)
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs):
            raise ConfigurationError("ssl-keyfile and ssl-ca-certs need ssl-certfile. Name the certificate's file too.")
        if self.uds is not None and (not self.uds or "\0" in self.uds):
            raise ConfigurationError(f"uds is {self.uds!r}; name a path.")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"otlp-endpoint is {self.otlp_endpoint!r}; give a URL such as http://localhost:4318."
            )
        if not self.drain_timeout >= 0:
            raise ConfigurationError(f"drain-timeout is {self.drain_timeout}; use 0 to end running requests at once.")
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


def clean_key(key: str) -> str:
    """Strip what editors leave around a key in a file: a byte order mark, line ends, blanks."""
    return key.strip("\ufeff \t\r\n")
