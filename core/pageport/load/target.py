"""``Target``: the server that is asked, and how."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pageport.errors import ConfigurationError
from pageport.load.answer import Answer
from pageport.load.completion_stream import read_stream
from pageport.load.config import TargetConfig
from pageport.load.dataset import LoadPrompt
from pageport.load.event_stream import open_stream

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go, and what each body holds besides the prompt and its length."""

    url: str  # without a path
    model: str
    is_chat: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    exact_length: bool = False  # ask for all of max_tokens, in fields that not every server knows

    @property
    def path(self) -> str:
        return PATHS["chat" if self.is_chat else "completions"]

    async def ask(self, prompt: LoadPrompt) -> Answer:
        """Send one request and read its stream.

        Raises:
            BadAnswer, OSError: it failed.
        """
        return await read_stream(
            self.url + self.path,
            json.dumps(self.body(prompt)).encode(),
            wanted_tokens=prompt.max_tokens,
            headers=self.headers,
        )

    def body(self, prompt: LoadPrompt) -> dict[str, Any]:
        """Build a request's body."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.exact_length:
            body |= {"min_tokens": prompt.max_tokens, "ignore_eos": True}
        if not self.is_chat:
            body["prompt"] = prompt.prompt
        else:
            body["messages"] = prompt.messages or [{"role": "user", "content": prompt.prompt}]
        return {**body, **self.fields}


async def find_target(config: TargetConfig, prompts: Sequence[LoadPrompt]) -> Target:
    """Decide how to ask for ``prompts``, and ask the server for its model where none is named.

    Raises:
        ConfigurationError: the settings do not fit the prompts, or the server does not answer.
    """
    has_messages = any(prompt.messages is not None for prompt in prompts)
    is_chat = has_messages if config.endpoint == "auto" else config.endpoint == "chat"
    if has_messages and not is_chat:
        raise ConfigurationError("Conversations cannot be sent as completions. Leave out --endpoint completions.")
    if is_chat and any(isinstance(prompt.prompt, list) for prompt in prompts):
        raise ConfigurationError("Token ids cannot be sent to the chat endpoint. Use another --dataset.")
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    url = config.url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"--url is {config.url!r}; write http://HOST:PORT.")
    return Target(
        url=url,
        model=config.model or await _served_model(url, headers),
        is_chat=is_chat,
        headers=headers,
        fields={"temperature": config.temperature, **_extra(config.extra_body)},
        exact_length=config.ignore_eos,
    )


async def _served_model(url: str, headers: Mapping[str, str]) -> str:
    try:
        async with open_stream(f"{url}/v1/models", "GET", headers=headers) as stream:
            text = await stream.text()
            if stream.status != 200:
                raise ConfigurationError(f"{url}/v1/models answers HTTP {stream.status}: {text[:200]}")
        return str(json.loads(text)["data"][0]["id"])
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{url}/v1/models does not tell a model ({type(error).__name__}: {error}). Start the server, or name one "
            "with --model."
        ) from error


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--extra-body is no JSON: {error}.") from error
    if not isinstance(extra, dict):
        raise ConfigurationError("--extra-body must be a JSON object.")
    return extra
