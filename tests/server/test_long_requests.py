"""Long bodies are worked on beside the event loop."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from tokenizers.processors import TemplateProcessing

from pageport.text.tokenizer import LONG_TEXT as LONG_TEXT_CHARACTERS

from .conftest import ScriptedEngine, app_for, byte_tokenizer

LONG_TEXT = "The quick brown fox 12; " * 20_000


async def note_gaps(gaps: list[float]) -> None:
    """Note how long each turn of the event loop takes, as a stream would feel it."""
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": LONG_TEXT}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG_TEXT}]}, 400),
        ("/v1/responses", {"input": LONG_TEXT}, 400),
        ("/tokenize", {"prompt": LONG_TEXT}, 200),
    ],
)
def test_a_long_prompt_does_not_hold_up_streams(
    engine: ScriptedEngine, path: str, body: dict[str, Any], status: int
) -> None:
    """Best of three: the machine may be busy. On the loop, the gap would be the whole time that encoding takes."""
    app, content = app_for(engine), json.dumps(body).encode()
    started = time.perf_counter()
    engine.tokenizer.encode(LONG_TEXT)
    encoding_s = time.perf_counter() - started

    async def gap_s() -> float:
        gaps: list[float] = []
        watch = asyncio.create_task(note_gaps(gaps))
        await asyncio.sleep(0.005)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            assert (await client.post(path, content=content)).status_code == status
        await asyncio.sleep(0.005)
        watch.cancel()
        return max(gaps)

    assert min(asyncio.run(gap_s()) for _ in range(3)) < 0.3 * encoding_s


@pytest.mark.parametrize("adds_special_tokens", [False, True])
@pytest.mark.parametrize("length", [LONG_TEXT_CHARACTERS, LONG_TEXT_CHARACTERS + 1])
def test_a_long_text_has_the_tokens_of_a_short_one(length: int, adds_special_tokens: bool) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend.post_processor = TemplateProcessing("</s> $A", special_tokens=[("</s>", 256)])
    text = ("é</s>x" * length)[:length]
    expected = tokenizer.backend.encode(text, add_special_tokens=adds_special_tokens).ids
    assert tokenizer.encode(text, adds_special_tokens) == expected


def test_requests_that_wait_for_a_thread_are_dropped_at_the_end(engine: ScriptedEngine) -> None:
    """A process ends when its threads are done."""
    service = app_for(engine).state.service
    waiting = [service._threads.submit(time.sleep, 0.05) for _ in range(50)]
    service.close()
    started = time.perf_counter()
    service._threads.shutdown()
    assert time.perf_counter() - started < 1
    assert sum(future.cancelled() for future in waiting) >= 45
