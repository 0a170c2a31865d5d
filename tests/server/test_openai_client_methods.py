"""Every method of the official client for our routes, plain and asynchronous, over a scripted engine."""

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from .conftest import ScriptedEngine, app_for
from .test_tools import engine_saying

MESSAGES: Any = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>{"name": "Weather", "arguments": {"city": "Oslo", "degrees": 3}}</tool_call>'
# Differ from answer to answer.
PASSING = {"id", "created", "created_at", "completed_at", "item_id", "call_id", "first_id", "last_id"}


class Weather(BaseModel):
    city: str
    degrees: int


TOOLS: list[Any] = [openai.pydantic_function_tool(Weather)]
STREAM = {"stream": True}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "models": ("models.list", {}),
    "model": ("models.retrieve", {"model": "org/tiny"}),
    "completion": ("completions.create", {"prompt": "a"}),
    "completion streamed": ("completions.create", {"prompt": "a"} | STREAM),
    "chat": ("chat.completions.create", {"messages": MESSAGES}),
    "chat streamed": ("chat.completions.create", {"messages": MESSAGES} | STREAM),
    "chat parsed": ("chat.completions.parse", {"messages": MESSAGES, "response_format": Weather}),
    "embeddings": ("embeddings.create", {"input": ["a", "b"]}),
    "embeddings as numbers": ("embeddings.create", {"input": "a", "encoding_format": "float"}),
    "response": ("responses.create", {"input": "hi"}),
    "response streamed": ("responses.create", {"input": "hi"} | STREAM),
    "response parsed": ("responses.parse", {"input": "hi", "text_format": Weather}),
    "input tokens": ("responses.input_tokens.count", {"input": "hi"}),
}


class Served:
    """An application that listens on a port of this machine, in a thread."""

    def __init__(self, engine: ScriptedEngine) -> None:
        app = app_for(engine, tool_format="hermes")
        self._server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="error"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.options: Any = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none", "max_retries": 0}

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served(engine_saying('{"city": "Oslo", "degrees": 3}'))
    yield served
    served.close()


@pytest.fixture(scope="module")
def calling() -> Iterator[Served]:
    served = Served(engine_saying(CALL))
    yield served
    served.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(**served.options) as client:
        yield client


def seen(value: Any) -> Any:
    """Return an answer in plain values, without what differs from one to the next."""
    if isinstance(value, list):
        return [seen(item) for item in value]
    if isinstance(value, dict):
        return {name: seen(item) for name, item in value.items() if name not in PASSING}
    return seen(value.model_dump(warnings=False)) if isinstance(value, BaseModel) else value


def called(client: OpenAI, method: str, arguments: dict[str, Any]) -> Any:
    result = attrgetter(method)(client)(**arguments)
    return list(result) if arguments.get("stream") or method.endswith("list") else result


async def awaited(served: Served, method: str, arguments: dict[str, Any]) -> Any:
    async with AsyncOpenAI(**served.options) as client:
        result = attrgetter(method)(client)(**arguments)
        if inspect.isawaitable(result):
            result = await result
        is_many = arguments.get("stream") or method.endswith("list")
        return [item async for item in result] if is_many else result


def with_model(method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments if method.startswith("models") else {"model": "org/tiny"} | arguments


@pytest.mark.parametrize("name", CALLS)
def test_a_method_gives_the_same_called_and_awaited(served: Served, client: OpenAI, name: str) -> None:
    method, arguments = CALLS[name][0], with_model(*CALLS[name])
    result = called(client, method, arguments)
    assert result
    assert seen(result) == seen(asyncio.run(awaited(served, method, arguments)))


def test_stored_responses_are_got_listed_and_deleted_asynchronously(served: Served) -> None:
    async def talk() -> None:
        async with AsyncOpenAI(**served.options) as client:
            made = await client.responses.create(model="org/tiny", input="hi")
            assert await client.responses.retrieve(made.id) == made
            assert [item.type async for item in client.responses.input_items.list(made.id)] == ["message"]
            with pytest.raises(openai.BadRequestError, match="background"):
                await client.responses.cancel(made.id)
            await client.responses.delete(made.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(made.id)

    asyncio.run(talk())


def test_an_answer_is_parsed_into_a_model(client: OpenAI) -> None:
    wanted = Weather(city="Oslo", degrees=3)
    chat = client.chat.completions.parse(model="org/tiny", messages=MESSAGES, response_format=Weather)
    response = client.responses.parse(model="org/tiny", input="hi", text_format=Weather)
    assert chat.choices[0].message.parsed == response.output_parsed == wanted
    with client.chat.completions.stream(model="org/tiny", messages=MESSAGES, response_format=Weather) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == wanted
    with client.responses.stream(model="org/tiny", input="hi", text_format=Weather) as events:
        assert events.get_final_response().output_parsed == wanted


def test_a_call_s_arguments_are_parsed_into_a_model(calling: Served) -> None:
    wanted = Weather(city="Oslo", degrees=3)
    with OpenAI(**calling.options) as client:
        options: dict[str, Any] = {"model": "org/tiny", "messages": MESSAGES, "tools": TOOLS}
        chat = client.chat.completions.parse(**options).choices[0].message
        with client.chat.completions.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0].message
        for message in (chat, streamed):
            assert message.tool_calls is not None
            assert message.tool_calls[0].function.parsed_arguments == wanted
        flat: Any = [{"type": "function", **TOOLS[0]["function"]}]
        response = client.responses.parse(model="org/tiny", input="hi", tools=flat)
        with client.responses.stream(model="org/tiny", input="hi", tools=flat) as events:
            kinds = {event.type for event in events}
            final = events.get_final_response()
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert [json.loads(answer.output[0].arguments) for answer in (response, final)] == [wanted.model_dump()] * 2  # type: ignore[union-attr]


def test_a_function_s_output_is_answered(calling: Served) -> None:
    with OpenAI(**calling.options) as client:
        flat: Any = [{"type": "function", **TOOLS[0]["function"]}]
        first = client.responses.create(model="org/tiny", input="hi", tools=flat)
        (call,) = first.output
        assert call.type == "function_call"
        told: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "cold"}
        kept = client.responses.create(model="org/tiny", input=[told], tools=flat, previous_response_id=first.id)
        history: Any = [{"role": "user", "content": "hi"}, *first.output, told]
        whole = client.responses.create(model="org/tiny", input=history, tools=flat)
        items = list(client.responses.input_items.list(kept.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]
    assert kept.usage is not None and whole.usage is not None
    assert kept.usage.input_tokens == whole.usage.input_tokens


def test_embeddings_come_as_base64_unless_numbers_are_asked_for(client: OpenAI) -> None:
    """EMB-01: the client asks for base64 itself, and shows numbers."""
    raw = client.embeddings.with_raw_response.create(model="org/tiny", input=["a"], encoding_format="base64")
    assert isinstance(json.loads(raw.text)["data"][0]["embedding"], str)
    default = client.embeddings.create(model="org/tiny", input=["a"])
    numbers = client.embeddings.create(model="org/tiny", input=["a"], encoding_format="float")
    assert default.data[0].embedding == pytest.approx(numbers.data[0].embedding)


def test_raw_answers_show_their_headers(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "org/tiny", "messages": MESSAGES, "extra_headers": {"X-Request-Id": "mine"}}
    raw = client.chat.completions.with_raw_response.create(**options)
    assert (raw.status_code, raw.headers["x-request-id"], raw.request_id) == (200, "mine", "mine")
    assert isinstance(raw.parse(), ChatCompletion)
    with client.chat.completions.with_streaming_response.create(**options, stream=True) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert [line for line in answer.iter_lines() if line][-1] == "data: [DONE]"


@pytest.mark.parametrize("method", ["images.generate", "moderations.create", "batches.list", "files.list"])
def test_what_is_not_served_is_not_found(client: OpenAI, method: str) -> None:
    arguments = {"images.generate": {"prompt": "a"}, "moderations.create": {"input": "a"}}.get(method, {})
    with pytest.raises(openai.NotFoundError, match="openapi"):
        attrgetter(method)(client)(**arguments)
