"""Calls and reasoning in ``/v1/responses``: as items and events, and what comes back of them."""

from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from pageport.text.chat import ChatTemplate

from .conftest import ScriptedEngine, app_for, ask
from .test_responses import prompt_of, stream_events
from .test_tools import TOOLS as CHAT_TOOLS
from .test_tools import TWO_CALLS, engine_saying

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEMPLATE = (
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}[{{ c.id }}:{{ c.function.name }}="
    "{{ c.function.arguments }}]{% endfor %}{% if m.tool_call_id %}@{{ m.tool_call_id }}{% endif %}</s>{% endfor %}"
    "<assistant>"
)
TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}, "strict": True},
    {"type": "function", "name": "g"},
]
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "two"}
THOUGHT = "<think>\nwhy?\n</think>\n\n"
TEXTS = [
    THOUGHT + "so",
    THOUGHT + TWO_CALLS,
    THOUGHT,
    TWO_CALLS,
    TWO_CALLS.removeprefix("Sure.\n"),
    "no call",
    TWO_CALLS + "\nDone.",
    "",
    '<tool_call>{"name": "h"}',
]


def responding(text: str) -> ScriptedEngine:
    engine = engine_saying(text)
    engine.chat_template = ChatTemplate(TEMPLATE, engine.tokenizer)
    return engine


def respond(engine: ScriptedEngine, **body: Any) -> Any:
    app = app_for(engine, tool_format="hermes", reasoning_format="think")
    return ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": TOOLS, **body})


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item | {"id": "", "call_id": ""} for item in output]


def thoughts(answer: dict[str, Any]) -> list[str]:
    return [item["content"][0]["text"] for item in answer["output"] if item["type"] == "reasoning"]


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the output together from the small events, and check that each item is opened and closed in its turn."""
    output: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
        elif kind == "content_part.added":
            output[-1]["content"].append(event["part"])
        elif "output_index" in event:
            assert event["output_index"] == len(output) - 1
            assert event.get("item_id", output[-1]["id"]) == output[-1]["id"]
        if kind in ("output_text.delta", "reasoning_text.delta"):
            output[-1]["content"][0]["text"] += event["delta"]
        if kind == "function_call_arguments.delta":
            output[-1]["arguments"] += event["delta"]
        if kind == "output_item.done":
            output[-1]["status"] = event["item"]["status"]
            assert output[-1] == event["item"]
    return output


def test_calls_are_items_that_the_strict_client_reads() -> None:
    answer = respond(responding(TWO_CALLS)).json()
    parsed = Response.model_validate(answer, strict=True)
    message, first, second = parsed.output
    assert (message.type, parsed.output_text.strip()) == ("message", "Sure.")
    assert first.type == second.type == "function_call"
    assert [(first.name, first.arguments), (second.name, second.arguments)] == [("f", '{"a": 1}'), ("g", "{}")]
    assert first.call_id != second.call_id
    assert (parsed.status, len(parsed.tools), parsed.tool_choice) == ("completed", 2, "auto")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("max_output_tokens", [None, 40])
def test_a_stream_builds_up_the_same_items(text: str, max_output_tokens: int | None) -> None:
    plain = respond(responding(text), max_output_tokens=max_output_tokens).json()
    told = stream_events(respond(responding(text), max_output_tokens=max_output_tokens, stream=True))
    for number, event in enumerate(told):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    last = told[-1]["response"]
    assert rebuilt(told) == last["output"]
    assert without_ids(last["output"]) == without_ids(plain["output"])
    assert last["status"] == plain["status"] == told[-1]["type"].removeprefix("response.")
    assert told[0]["response"]["output"] == told[1]["response"]["output"] == []


def test_what_was_thought_is_an_item_before_the_answer() -> None:
    answer = respond(responding(THOUGHT + "so"), include=["message.output_text.logprobs"]).json()
    thought, message = Response.model_validate(answer, strict=True).output
    assert (thought.type, message.type) == ("reasoning", "message")
    assert (thoughts(answer), message.content[0].text) == (["why?"], "so")
    assert [entry["token"] for entry in answer["output"][1]["content"][0]["logprobs"]] == ["s", "o"]
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == len("<think>\nwhy?\n</think>")


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_was_thought_is_not_told_to_the_model_again(is_kept: bool) -> None:
    engine = responding(THOUGHT + "so")
    app = app_for(engine, reasoning_format="think")
    first = ask(app, "POST", "/v1/responses", json={"input": "hi"}).json()
    history = {"input": [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "and"}]}
    kept = {"input": "and", "previous_response_id": first["id"]}
    assert ask(app, "POST", "/v1/responses", json=kept if is_kept else history).status_code == 200
    assert prompt_of(engine) == "<user>hi</s><assistant>so</s><user>and</s><assistant>"


def test_arguments_come_in_pieces() -> None:
    told = stream_events(respond(responding(TWO_CALLS), stream=True))
    deltas = [event["delta"] for event in told if event["type"] == "response.function_call_arguments.delta"]
    done = [event for event in told if event["type"] == "response.function_call_arguments.done"]
    assert len(deltas) > 4
    assert "".join(deltas) == "".join(event["arguments"] for event in done)
    assert [event["name"] for event in done] == ["f", "g"]


def test_a_call_that_is_cut_is_incomplete() -> None:
    answer = respond(responding(TWO_CALLS.removeprefix("Sure.\n")), max_output_tokens=44).json()
    (item,) = answer["output"]
    assert (item["type"], item["status"], answer["status"]) == ("function_call", "incomplete", "incomplete")
    assert '{"a": 1}'.startswith(item["arguments"])


def test_logprobs_of_calls_make_no_empty_message() -> None:
    engine = responding(TWO_CALLS.removeprefix("Sure.\n"))
    output = respond(engine, include=["message.output_text.logprobs"]).json()["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call"]


@pytest.mark.parametrize(
    ("items", "prompt"),
    [
        ([{"role": "user", "content": "x"}, CALL, OUTPUT],
         '<user>x</s><assistant>[c1:f={"a": 1}]</s><tool>two@c1</s><assistant>'),
        ([{"role": "assistant", "content": "so"}, CALL, CALL | {"call_id": "c2", "name": "g", "arguments": ""}],
         '<assistant>so[c1:f={"a": 1}][c2:g={}]</s><assistant>'),
        ([CALL, OUTPUT | {"output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
         '<assistant>[c1:f={"a": 1}]</s><tool>a\nb@c1</s><assistant>'),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "x"}],
         "<user>x</s><assistant>"),
    ],
)  # fmt: skip
def test_what_came_of_a_call_is_told_to_the_model(items: list[Any], prompt: str) -> None:
    engine = responding("ok")
    assert respond(engine, input=items).status_code == 200
    # Whether templates get arguments as text or as an object is the template's business.
    assert prompt_of(engine).replace("'", '"') == "(f)(g)" + prompt


def test_a_kept_answer_s_calls_are_gone_on_with() -> None:
    engine = responding(TWO_CALLS)
    app = app_for(engine, tool_format="hermes")
    first = ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": TOOLS}).json()
    ids = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call_id, "output": call_id[-1]} for call_id in ids]
    body = {"input": outputs, "tools": TOOLS, "previous_response_id": first["id"]}
    second = ask(app, "POST", "/v1/responses", json=body).json()
    shown = prompt_of(engine)
    assert [f"[{call_id}:" in shown and f"<tool>{call_id[-1]}@{call_id}" in shown for call_id in ids] == [True, True]
    listed = ask(app, "GET", f"/v1/responses/{second['id']}/input_items?order=asc").json()
    parsed = ResponseItemList.model_validate(listed, strict=True)
    kinds = ["message", "message", "function_call", "function_call", "function_call_output", "function_call_output"]
    assert [item.type for item in parsed.data] == kinds
    assert len({item.id for item in parsed.data}) == len(kinds)


@pytest.mark.parametrize("choice", ["none", "auto", "required", {"type": "function", "name": "g"}])
@pytest.mark.parametrize("is_parallel", [None, False])
def test_tools_mean_what_they_mean_in_chat(choice: Any, is_parallel: bool | None) -> None:
    engine = responding(TWO_CALLS)
    chat_choice = {"type": "function", "function": {"name": "g"}} if isinstance(choice, dict) else choice
    tools = [CHAT_TOOLS[0] | {"function": CHAT_TOOLS[0]["function"] | {"strict": True}}, CHAT_TOOLS[1]]  # type: ignore[operator]
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": chat_choice}
    app = app_for(engine, tool_format="hermes", reasoning_format="think")
    chat = ask(app, "POST", "/v1/chat/completions", json=asked | {"parallel_tool_calls": is_parallel}).json()
    answer = respond(engine, tool_choice=choice, parallel_tool_calls=is_parallel).json()
    calls = [call["function"] for call in chat["choices"][0]["message"].get("tool_calls", [])]
    made = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [(item["name"], item["arguments"]) for item in made] == [(c["name"], c["arguments"]) for c in calls]
    assert engine.requests[0].prompt_token_ids == engine.requests[1].prompt_token_ids
    assert engine.requests[0].sampling.structured == engine.requests[1].sampling.structured
    assert answer["tool_choice"] == choice


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input"),
        ({"input": [OUTPUT | {"output": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"tool_choice": {"type": "function", "name": "h"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [TOOLS[0] | {"parameters": {"type": "array"}}], "tool_choice": "required"}, "tools"),
    ],
)
def test_what_cannot_be_is_refused_by_name(body: dict[str, Any], field: str) -> None:
    response = respond(responding("x"), **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
