"""``/v1/responses`` at the protocol's level."""

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pageport.server.protocol.chat import ChatMessage
from pageport.server.protocol.responses import ResponseObject, ResponseRequest
from pageport.server.response_input import chat_request, input_messages
from pageport.server.response_store import ResponseStore, StoredResponse

from .conftest import ScriptedEngine, app_for, ask

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ORDER = [
    "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
    "content_part.done", "output_item.done",
]  # fmt: skip


def respond(engine: ScriptedEngine, **body: Any) -> httpx.Response:
    return ask(app_for(engine), "POST", "/v1/responses", json={"input": "hi", **body})


def stream_events(response: httpx.Response) -> list[dict[str, Any]]:
    """Parse a stream strictly: each event says its type twice."""
    parsed = []
    for text in response.text.removesuffix("\n\n").split("\n\n"):
        name, _, data = text.partition("\n")
        parsed.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {parsed[-1]['type']}"
    return parsed


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def constant(answer: dict[str, Any]) -> dict[str, Any]:
    output = [item | {"id": ""} for item in answer["output"]]
    return answer | {"id": "", "created_at": 0, "completed_at": 0, "output": output}


def test_an_answer_is_what_strict_clients_expect(engine: ScriptedEngine) -> None:
    """INT-06."""
    answer = respond(engine, metadata={"a": "b"}, top_p=0.5, temperature=0, max_output_tokens=9).json()
    parsed = Response.model_validate(answer, strict=True)
    assert (parsed.output_text, parsed.status, parsed.metadata) == ("hello", "completed", {"a": "b"})
    assert (parsed.temperature, parsed.top_p, parsed.max_output_tokens) == (0, 0.5, 9)
    assert parsed.usage is not None
    assert (parsed.usage.output_tokens, parsed.usage.total_tokens) == (6, parsed.usage.input_tokens + 6)
    assert answer["id"].startswith("resp_")


@pytest.mark.parametrize("text", ["hello", "", "é日\u2028x"])
@pytest.mark.parametrize("max_output_tokens", [None, 3])
def test_a_stream_builds_up_the_same_answer(text: str, max_output_tokens: int | None) -> None:
    """Events in order and numbered, ids the same throughout, each valid for the official client's types."""
    engine = ScriptedEngine(text)
    plain = respond(engine, max_output_tokens=max_output_tokens).json()
    told = stream_events(respond(engine, max_output_tokens=max_output_tokens, stream=True))
    for number, event in enumerate(told):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in told))
    assert kinds == [kind for kind in [*ORDER, plain["status"]] if text or kind != "output_text.delta"]
    assert constant(told[-1]["response"]) == constant(plain)
    deltas = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert deltas == plain["output"][0]["content"][0]["text"] == next(e["text"] for e in told if "text" in e)
    assert len({event["item_id"] for event in told if "item_id" in event} | {plain["output"][0]["id"]}) == 2


def test_an_answer_that_is_cut_is_incomplete(engine: ScriptedEngine) -> None:
    answer = respond(engine, max_output_tokens=3).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (answer["output"][0]["status"], answer["completed_at"]) == ("incomplete", None)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({"input": "hi"}, "<user>hi</s><assistant>"),
        ({"input": "hi", "instructions": "be brief"}, "<system>be brief</s><user>hi</s><assistant>"),
        (
            {
                "input": [
                    {"role": "developer", "content": "x"},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {
                        "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                        "content": [{"type": "output_text", "text": "b", "annotations": []}],
                    },
                    {"role": "user", "content": "c"},
                ]
            },
            "<system>x</s><user>a</s><assistant>b</s><user>c</s><assistant>",
        ),
    ],
)  # fmt: skip
def test_the_input_becomes_a_conversation(engine: ScriptedEngine, body: dict[str, Any], prompt: str) -> None:
    assert respond(engine, **body).status_code == 200
    assert prompt_of(engine) == prompt


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_answer_is_gone_on_with(engine: ScriptedEngine, stream: bool) -> None:
    """The instructions of the first request hold for it alone; a deleted answer leaves those after it whole."""
    app = app_for(engine)
    first = ask(app, "POST", "/v1/responses", json={"input": "a", "instructions": "x", "stream": stream})
    first_id = stream_events(first)[-1]["response"]["id"] if stream else first.json()["id"]
    second = ask(app, "POST", "/v1/responses", json={"input": "b", "previous_response_id": first_id}).json()
    assert prompt_of(engine) == "<user>a</s><assistant>hello</s><user>b</s><assistant>"
    assert second["previous_response_id"] == first_id
    assert ask(app, "DELETE", f"/v1/responses/{first_id}").json()["deleted"] is True
    ask(app, "POST", "/v1/responses", json={"input": "c", "previous_response_id": second["id"]})
    assert prompt_of(engine).startswith("<user>a</s><assistant>hello</s><user>b</s><assistant>hello</s><user>c")


def test_a_kept_answer_is_got_and_deleted(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    answer = ask(app, "POST", "/v1/responses", json={"input": "a"}).json()
    path = f"/v1/responses/{answer['id']}"
    assert ask(app, "GET", path).json() == answer
    assert ask(app, "GET", f"{path}?stream=true").status_code == 400
    assert ask(app, "DELETE", path).status_code == 200
    for method in ("GET", "DELETE"):
        response = ask(app, method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(("body", "settings"), [({"store": False}, {}), ({}, {"max_stored_responses": 0})])
def test_an_answer_that_is_not_kept_is_not_found(
    engine: ScriptedEngine, body: dict[str, Any], settings: dict[str, Any]
) -> None:
    app = app_for(engine, **settings)
    answer = ask(app, "POST", "/v1/responses", json={"input": "a", **body}).json()
    assert ask(app, "GET", f"/v1/responses/{answer['id']}").status_code == 404
    refused = ask(app, "POST", "/v1/responses", json={"input": "b", "previous_response_id": answer["id"]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", []), ("input", ""), ("input", 3), ("input", [{"role": "user", "content": 3}]), ("input", [{}]),
        ("input", [{"type": "item_reference", "id": "x"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}]),
        ("input", [{"role": "user", "content": [{"type": "input_text"}]}]), ("input", [{"role": "nobody"}]),
        ("input", "x" * 200), ("max_output_tokens", 0), ("max_output_tokens", 1000), ("max_tokens", 5), ("n", 2),
        ("best_of", 2), ("echo", True), ("prompt_logprobs", 1), ("use_beam_search", True), ("temperature", -1),
        ("top_p", 7), ("top_logprobs", 21), ("background", True), ("truncation", "auto"), ("prompt", {"id": "x"}),
        ("tools", [{"type": "web_search"}]), ("tools", [{"type": "function"}]), ("tool_choice", "required"),
        ("include", ["file_search"]),
        ("conversation", "conv_1"), ("metadata", {"a": 1}), ("store", "x"), ("text", "x"), ("text", {"format": 3}),
        ("text", {"format": {"type": "no such format"}}), ("stream", "maybe"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_an_impossible_value_is_refused_by_name(engine: ScriptedEngine, field: str, value: Any, stream: bool) -> None:
    response = respond(engine, **{"stream": stream, field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert engine.requests == []


def test_logprobs_come_on_request(engine: ScriptedEngine) -> None:
    body: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    plain = Response.model_validate(respond(engine, **body).json(), strict=True)
    told = stream_events(respond(engine, **body, stream=True))
    (part,) = plain.model_dump()["output"][0]["content"]
    assert [token["token"] for token in part["logprobs"]][:5] == list("hello")
    streamed = [token for event in told if "delta" in event for token in event["logprobs"]]
    assert streamed == part["logprobs"]


@pytest.mark.parametrize("fail_after", [0, 2])
def test_a_stream_that_fails_says_so(fail_after: int) -> None:
    """INT-04: a plain error before the first event; after it a failed response, and an error for every client."""
    engine = ScriptedEngine(fail_after=fail_after)
    response = respond(engine, stream=True)
    if fail_after == 0:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        return
    *_, failed, error = response.text.removesuffix("\n\n").split("\n\n")
    told = json.loads(failed.partition("\n")[2].removeprefix("data: "))
    assert (told["type"], told["response"]["status"]) == ("response.failed", "failed")
    assert "signal 9" in told["response"]["error"]["message"]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"


def stored(response_id: str, text: str) -> StoredResponse:
    response = ResponseObject(
        id=response_id, created_at=0, status="completed", model="m", instructions=None, previous_response_id=None,
        store=True, max_output_tokens=None, temperature=1.0, top_p=1.0, top_logprobs=0, text={}, metadata={},
    )  # fmt: skip
    return StoredResponse(response=response, conversation=[ChatMessage(role="user", content=text)])


@pytest.mark.parametrize(("max_responses", "max_bytes"), [(3, 10**9), (10**9, 3 * stored("0", "x" * 100).num_bytes)])
def test_kept_answers_are_bounded(max_responses: int, max_bytes: int) -> None:
    store = ResponseStore(max_responses=max_responses, max_bytes=max_bytes)
    for number in range(10):
        store.add(stored(str(number), "x" * 100))
    assert [number for number in range(10) if store.get(str(number))] == [7, 8, 9]
    assert store.num_bytes <= max_bytes
    assert all(store.delete(str(number)) for number in (7, 8, 9))
    assert (len(store), store.num_bytes) == (0, 0)


def test_an_answer_too_long_to_keep_costs_no_other_its_place() -> None:
    store = ResponseStore(max_responses=9, max_bytes=10_000)
    store.add(stored("short", "x"))
    store.add(stored("long", "x" * 10_000))
    assert (store.get("long"), len(store)) == (None, 1)


def test_the_input_of_a_kept_answer_is_listed_in_pages(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    first = ask(app, "POST", "/v1/responses", json={"input": "a"}).json()["id"]
    last = ask(app, "POST", "/v1/responses", json={"input": "b", "previous_response_id": first}).json()["id"]
    path = f"/v1/responses/{last}/input_items"
    whole = ask(app, "GET", path, params={"order": "asc"}).json()
    assert [item["content"][0]["text"] for item in whole["data"]] == ["a", "hello", "b"]
    assert [item["role"] for item in whole["data"]] == ["user", "assistant", "user"]
    assert not whole["has_more"]
    page = ask(app, "GET", path, params={"limit": 2}).json()
    rest = ask(app, "GET", path, params={"limit": 2, "after": page["last_id"]}).json()
    assert page["data"] + rest["data"] == whole["data"][::-1]
    assert (page["has_more"], rest["has_more"]) == (True, False)


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}])
def test_an_impossible_page_is_refused_by_name(engine: ScriptedEngine, query: dict[str, Any]) -> None:
    app = app_for(engine)
    answer = ask(app, "POST", "/v1/responses", json={"input": "a"}).json()["id"]
    refused = ask(app, "GET", f"/v1/responses/{answer}/input_items", params=query)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, *query)


def test_what_is_over_cannot_be_cancelled(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    answer = ask(app, "POST", "/v1/responses", json={"input": "a"}).json()["id"]
    assert ask(app, "POST", f"/v1/responses/{answer}/cancel").status_code == 400
    assert ask(app, "POST", "/v1/responses/resp_x/cancel").status_code == 404


def test_input_tokens_are_those_that_an_answer_costs(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    body: dict[str, Any] = {"input": "hé", "instructions": "x"}
    counted = ask(app, "POST", "/v1/responses/input_tokens", json=body).json()
    assert engine.requests == []
    usage = ask(app, "POST", "/v1/responses", json=body).json()["usage"]
    assert counted == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    refused = ask(app, "POST", "/v1/responses/input_tokens", json={"input": [{"role": "nobody"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        ({"type": "text"}, {"type": "text"}),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "n", "strict": True, "schema": {"type": "object"}},
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}},
        ),
    ],
)
def test_a_text_format_is_the_chat_endpoint_s_response_format(given: dict[str, Any], chat: dict[str, Any]) -> None:
    body = ResponseRequest.model_validate({"input": "a", "text": {"format": given}})
    assert (
        chat_request(body, input_messages(body)).model_dump(exclude_unset=True, by_alias=True)["response_format"]
        == chat
    )
