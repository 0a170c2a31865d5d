"""``read_stream``: send one streaming request, of completions or of chat, and note when its tokens come."""

import json
import time
from collections.abc import Mapping
from typing import Any

from pageport.load.answer import Answer, BadAnswer
from pageport.load.event_stream import open_stream


async def read_stream(url: str, body: bytes, *, wanted_tokens: int, headers: Mapping[str, str] | None = None) -> Answer:
    """Send ``body`` to ``url`` and read the whole stream.

    Raises:
        BadAnswer: an HTTP error, an error event, a stream that breaks off, or no token at all.
        OSError: the server cannot be reached.
    """
    answer = Answer(wanted_tokens=wanted_tokens, sent_at=time.perf_counter())
    try:
        async with open_stream(url, "POST", body, headers) as stream:
            if stream.status != 200:
                text = await stream.text()
                raise BadAnswer(f"HTTP {stream.status}", f"HTTP {stream.status} from {url}: {text[:300]}")
            async for line in stream.lines:
                if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                    _note_event(answer, json.loads(data))
    except (EOFError, ValueError) as error:
        raise BadAnswer("broken stream", f"{url} sent a broken stream: {type(error).__name__}: {error}") from error
    answer.finished_at = time.perf_counter()
    if not answer.chunk_times:
        raise BadAnswer("no token", f"{url} sent no token for a request of {wanted_tokens}.")
    return answer


def _note_event(answer: Answer, event: Mapping[str, Any]) -> None:
    if event.get("error"):
        raise BadAnswer("error event", f"The stream ended with an error: {json.dumps(event['error'])[:300]}")
    usage = event.get("usage")
    if usage:
        answer.num_tokens = usage["completion_tokens"]
        answer.num_prompt_tokens = usage.get("prompt_tokens")
    choices = event.get("choices") or []
    if choices and carries_token(choices[0]):
        answer.chunk_times.append(time.perf_counter())


def carries_token(choice: Mapping[str, Any]) -> bool:
    """Not so: a chat's first chunk, which only names the role, and a last one that only says why it ended."""
    delta = choice.get("delta")
    if delta is not None:
        return any(value for name, value in delta.items() if name != "role")
    return choice.get("finish_reason") is None or bool(choice.get("text"))
