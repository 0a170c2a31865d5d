"""What a streamed token costs, in calls of Python functions: the cause, since times depend on the machine."""

import asyncio
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pageport.engine.messages import EngineRequest, SequenceOutput
from pageport.engine.output_processor import OutputProcessor
from pageport.sampling.params import SamplingParams

from .conftest import ScriptedEngine, app_for, byte_tokenizer


def count_calls(work: Callable[[], Any]) -> int:
    """Return how many Python functions ``work`` calls, resumed generators included."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def stream(app: Any, path: str, body: dict[str, Any]) -> int:
    """Run one streaming request on the bare application; return the number of events."""
    num_events = 0
    data = json.dumps({**body, "stream": True}).encode()

    async def go() -> None:
        unread = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Any:
            return unread.pop() if unread else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal num_events
            num_events += message.get("body", b"").count(b"data: ")

        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
        await app({**scope, "http_version": "1.1", "scheme": "http", "raw_path": path.encode()}, receive, send)

    asyncio.run(go())
    return num_events


# The scripted engine's own calls, about ten a token, are among them.
@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/v1/completions", {"prompt": "a"}, 70),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, 80),
    ],
)
def test_a_streamed_token_costs_few_calls(path: str, body: dict[str, Any], most: int) -> None:
    app = app_for(ScriptedEngine("x" * 110))
    stream(app, path, {**body, "max_tokens": 5})  # what is made once is made now
    calls = [count_calls(lambda n=n: stream(app, path, {**body, "max_tokens": n})) for n in (20, 100)]
    assert (calls[1] - calls[0]) / 80 < most


def test_a_token_becomes_text_in_few_calls() -> None:
    processor = OutputProcessor(byte_tokenizer())
    sampling = SamplingParams(max_tokens=1000)
    processor.add(EngineRequest(request_id="a", prompt_token_ids=[1], sampling=sampling, max_tokens=1000, seed=0))
    outputs = [SequenceOutput(request_id="a", index=0, token_ids=[120]) for _ in range(110)]
    processor.process(outputs[:10])
    calls = count_calls(lambda: processor.process(outputs[10:]))
    assert calls / 100 < 20
