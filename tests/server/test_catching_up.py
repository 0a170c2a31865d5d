"""A reader who is behind gets what came meanwhile in one go, and sees nothing else than a quick one."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pageport.engine.async_engine import take_all
from pageport.engine.messages import EngineRequest
from pageport.engine.outputs import ChoiceDelta
from pageport.errors import EngineDead, PageportError

from .conftest import ScriptedEngine, app_for, ask, events


def delta(text: str) -> ChoiceDelta:
    return ChoiceDelta(request_id="a", index=0, text=text)


@pytest.mark.parametrize(
    ("waiting", "texts", "fails"),
    [([], "a", False), ([[delta("b")], [delta("c")]], "abc", False), ([[delta("b")], EngineDead("gone")], "ab", True)],
)
def test_what_waits_is_taken_in_order_and_up_to_a_failure(waiting: list[Any], texts: str, fails: bool) -> None:
    queue: asyncio.Queue[list[ChoiceDelta] | PageportError] = asyncio.Queue()
    for item in waiting:
        queue.put_nowait(item)
    together, failure = take_all([delta("a")], queue)
    assert "".join(delta.text for delta in together) == texts
    assert isinstance(failure, EngineDead) is fails
    assert queue.empty()


class BehindEngine(ScriptedEngine):
    """Its steps come three at a time; with ``breaks`` the last one is an error."""

    breaks = False

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        together: list[ChoiceDelta] = []
        async for deltas in super().stream(request):
            together += deltas
            if len(together) >= 3:
                yield together
                together = []
        if self.breaks:
            together.append(
                ChoiceDelta(request_id=request.request_id, index=0, error="no logits", finish_reason="error")
            )
        if together:
            yield together


BODIES = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}]},
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("path", BODIES)
def test_its_events_are_those_of_a_quick_reader(path: str, options: dict[str, bool], n: int) -> None:
    body = {**BODIES[path], "stream": True, "stream_options": options, "n": n}
    quick, behind = (
        [_timeless(event) for event in events(ask(app_for(engine), "POST", path, json=body))]
        for engine in (ScriptedEngine(), BehindEngine())
    )
    assert behind == quick


@pytest.mark.parametrize("path", BODIES)
def test_tokens_before_a_failure_are_sent_though_they_came_with_it(path: str) -> None:
    engine = BehindEngine("hello you")
    engine.breaks = True
    body = {**BODIES[path], "stream": True, "max_tokens": 8}
    *chunks, failure = events(ask(app_for(engine), "POST", path, json=body))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    assert text == "hello yo"
    assert failure["error"]["message"] == "no logits"


def _timeless(event: Any) -> Any:
    return {**event, "id": "", "created": 0} if isinstance(event, dict) else event
