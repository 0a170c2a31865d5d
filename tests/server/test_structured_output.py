"""``response_format`` and its relatives, over HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from pageport.sampling.structured import StructuredOutput

from .conftest import Post, ScriptedEngine, ServerProcess

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
NAMED = {"name": "answer", "schema": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "json_schema": NAMED}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutput(json_object=True)),
        ({"response_format": FORMAT}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            StructuredOutput(json_schema='{"type": "object"}'),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": '{"type":"null"}'}}, StructuredOutput(json_schema='{"type":"null"}')),
        ({"structured_outputs": {"json_object": True}}, StructuredOutput(json_object=True)),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            StructuredOutput(regex="a", allows_whitespace=False),
        ),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutput(choice=("a", "b"))),
        ({"structured_outputs": {"grammar": "start: /a/"}}, StructuredOutput(grammar="start: /a/")),
        ({"guided_json": SCHEMA}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
        ({"guided_regex": "a"}, StructuredOutput(regex="a")),
        ({"guided_choice": ["a"]}, StructuredOutput(choice=("a",))),
        ({"guided_grammar": "start: /a/"}, StructuredOutput(grammar="start: /a/")),
    ],
)
def test_each_way_to_ask_for_a_form_reaches_the_engine(
    engine: ScriptedEngine, complete: Post, chat: Post, fields: dict[str, Any], expected: StructuredOutput | None
) -> None:
    for endpoint in (complete, chat):
        assert endpoint(**fields).status_code == 200
        assert engine.requests[-1].sampling.structured == expected


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "json_object", "json_schema": NAMED}}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
                             "use_beam_search": True}),
        ("structured_outputs", {"structured_outputs": {}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        ("structured_outputs", {"structured_outputs": {"json": "{"}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a", "structural_tag": "x"}}),
        ("structured_outputs", {"structured_outputs": {"choice": []}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
        ("guided_regex", {"guided_regex": "a", "guided_json": SCHEMA}),
        ("guided_choice", {"guided_choice": ["", "a"]}),
        ("guided_grammar", {"guided_grammar": "start: /a/" + " " * 200_000}),
    ],
)  # fmt: skip
def test_an_impossible_combination_is_refused_by_name(
    engine: ScriptedEngine, complete: Post, chat: Post, name: str, fields: dict[str, Any]
) -> None:
    """SEC-11."""
    for endpoint in (complete, chat):
        response = endpoint(max_tokens=5, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert engine.requests == []


@pytest.fixture(scope="module")
def server(tiny_model: str) -> Iterator[ServerProcess]:
    server = ServerProcess(tiny_model, "--num-kv-blocks", "128", "--max-model-len", "256").wait_until_ready()
    yield server
    server.stop()


def post(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, "seed": 3, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def test_a_served_answer_follows_its_schema_streamed_or_not(server: ServerProcess) -> None:
    choices = post(server, response_format=FORMAT, n=2).json()["choices"]
    for choice in choices:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        assert choice["finish_reason"] == "stop"
    lines = post(server, response_format=FORMAT, stream=True).text.split("\n\n")
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    assert text == choices[0]["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}),
        ("guided_regex", "(a"),
        ("structured_outputs", {"json": {"type": "array", "uniqueItems": True}}),
    ],
)
def test_what_cannot_be_compiled_is_a_400_even_when_streamed(
    server: ServerProcess, name: str, value: Any, stream: bool
) -> None:
    """STR-01."""
    response = post(server, stream=stream, **{name: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    server.wait_until_idle()


def test_an_explosive_grammar_delays_nobody(server: ServerProcess) -> None:
    """STR-05."""
    answers: list[httpx.Response] = []
    bomb = {"guided_json": {"type": "integer", "multipleOf": 999_979}}
    thread = threading.Thread(target=lambda: answers.append(post(server, **bomb)))
    thread.start()
    longest = 0.0
    while thread.is_alive():
        begin = time.monotonic()
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert post(server, max_tokens=3).status_code == 200
        longest = max(longest, time.monotonic() - begin)
    assert answers[0].status_code == 400 and "guided_json" in answers[0].text
    assert longest < 2.0  # the bomb burns at least that
    server.wait_until_idle()
