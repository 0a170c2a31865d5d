"""Forced calls of a served model with random weights: only the grammar makes calls of what it says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from .conftest import ServerProcess

OPTIONS = ("--max-num-seqs", "8", "--num-kv-blocks", "256", "--max-model-len", "512", "--served-model-name", "tiny")
DAYS = {"type": "integer", "minimum": 0, "maximum": 9}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "forecast",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": DAYS},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMED: Any = {"type": "function", "function": {"name": "forecast"}}


@pytest.fixture(scope="module", params=["hermes", "llama3_json", "mistral"])
def client(request: pytest.FixtureRequest, tiny_model: str) -> Iterator[OpenAI]:
    server = ServerProcess(tiny_model, *OPTIONS, "--tool-format", request.param).wait_until_ready()
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.stop()


def called(client: OpenAI, choice: Any, *, stream: bool, is_parallel: bool) -> tuple[list[tuple[str, str]], str | None]:
    """Return the calls' names and arguments, and why the answer ended."""
    options: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "tool_choice": choice,
        "parallel_tool_calls": is_parallel, "seed": 1, "max_tokens": 400,
    }  # fmt: skip
    if not stream:
        answer = client.chat.completions.create(**options).choices[0]
        calls = answer.message.tool_calls or []
        return [(call.function.name, call.function.arguments) for call in calls], answer.finish_reason
    with client.chat.completions.stream(**options) as chunks:
        final = chunks.get_final_completion().choices[0]
    calls = final.message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls], final.finish_reason


@pytest.mark.full
@pytest.mark.parametrize(("choice", "names"), [("required", {"forecast", "now"}), (NAMED, {"forecast"})])
def test_a_demanded_call_is_made_and_fits_its_schema(client: OpenAI, choice: Any, names: set[str]) -> None:
    """TOL-07: whatever the model would rather say, streamed or not."""
    calls, reason = called(client, choice, stream=False, is_parallel=False)
    assert calls == called(client, choice, stream=True, is_parallel=False)[0]
    assert (len(calls), reason) == (1, "tool_calls")
    name, arguments = calls[0][0], json.loads(calls[0][1])
    assert name in names
    if name == "forecast":
        assert set(arguments) == {"city", "days"}
        assert arguments["city"] in ("Oslo", "Rome")
        assert arguments["days"] in range(10)
    else:
        assert arguments == {}
