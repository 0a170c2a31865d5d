"""Tools in ``/v1/chat/completions``: what the model calls, and what clients see of it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers import AddedToken

from pageport.engine.input_processor import InputProcessor
from pageport.sampling.structured import StructuredOutput
from pageport.text.chat import ChatTemplate
from pageport.text.tokenizer import Tokenizer

from .conftest import CHAT_TEMPLATE, ScriptedEngine, app_for, ask, byte_tokenizer, events

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}},
    {"type": "function", "function": {"name": "g"}},
]
TWO_CALLS = (
    'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "g"}</tool_call>'
)
NAMED = {"type": "function", "function": {"name": "g"}}


def engine_saying(text: str, tokenizer: Tokenizer | None = None) -> ScriptedEngine:
    """Return an engine with room for what is said here."""
    engine = ScriptedEngine(text)
    engine.tokenizer = tokenizer or engine.tokenizer
    engine.info = replace(engine.info, max_model_len=512, max_request_tokens=512)
    engine._inputs = InputProcessor(engine.tokenizer, engine.info, 0)
    return engine


def post(text: str, *, template: str = CHAT_TEMPLATE, engine: ScriptedEngine | None = None, **body: Any) -> Any:
    """Ask an engine that says ``text`` and whose calls are written as Hermes does."""
    engine = engine or engine_saying(text)
    engine.chat_template = ChatTemplate(template, engine.tokenizer)
    settings = {name: body.pop(name) for name in ("tool_format", "reasoning_format") if name in body}
    messages = [{"role": "user", "content": "hi"}]
    app = app_for(engine, **{"tool_format": "hermes"} | settings)
    return ask(app, "POST", "/v1/chat/completions", json={"messages": messages, "tools": TOOLS} | body)


def merged(response: Any, index: int = 0) -> dict[str, Any]:
    """Put the chunks of one choice together as clients do, and check what they rely on."""
    *chunks, done = events(response)
    assert done == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)
    own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert own[0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in choice["delta"] for choice in own[1:])
    assert [choice["finish_reason"] is not None for choice in own] == [False] * (len(own) - 1) + [True]
    calls: list[Any] = []
    for part in (part for choice in own for part in choice["delta"].get("tool_calls", ())):
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": part["type"], "function": part["function"]})
        else:
            assert set(part) == {"index", "function"}
            assert set(part["function"]) == {"arguments"}
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    texts = {
        name: "".join(choice["delta"].get(name) or "" for choice in own) for name in ("content", "reasoning_content")
    }
    return {**texts, "tool_calls": calls, "finish_reason": own[-1]["finish_reason"]}


def seen(message: dict[str, Any], finish_reason: str) -> dict[str, Any]:
    """Return the whole answer in the form of ``merged``."""
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content") or "",
        "tool_calls": message.get("tool_calls") or [],
        "finish_reason": finish_reason,
    }


def without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    calls = [{key: value for key, value in call.items() if key != "id"} for call in answer["tool_calls"]]
    return {**answer, "tool_calls": calls}


def test_calls_are_valid_for_the_strict_client() -> None:
    response = post(TWO_CALLS.removeprefix("Sure."))
    message = ChatCompletion.model_validate_json(response.text, strict=True).choices[0].message
    assert message.content is None
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert [call.function.arguments for call in message.tool_calls or []] == ['{"a": 1}', "{}"]


def test_streamed_calls_have_indices_and_ids_of_their_own() -> None:
    """TOL-01, TOL-04 and INT-03."""
    answer = merged(post(TWO_CALLS, stream=True))
    assert (answer["content"], answer["finish_reason"]) == ("Sure.", "tool_calls")
    assert [call["function"] for call in answer["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert len({call["id"] for call in answer["tool_calls"]}) == 2


def test_every_choice_calls_for_itself() -> None:
    response = post(TWO_CALLS, stream=True, n=2)
    answers = [merged(response, index) for index in range(2)]
    assert without_ids(answers[0]) == without_ids(answers[1])
    assert len({call["id"] for answer in answers for call in answer["tool_calls"]}) == 4


@pytest.mark.parametrize(
    "text",
    [
        TWO_CALLS, "hello", "", "<think>\nwhy\n</think>\n\n" + TWO_CALLS[:80], "<think>why",
        '<tool_call>{"name":"f","arguments":{"a":1}</tool_call>',
        '<tool_call>{"name":"f","arguments":{}} x</tool_call>',
        "<tool_call>{'name':'f'}</tool_call>", '<tool_call>{"name":"x","arguments":{"a":"\n"}}</tool_call>',
        '<tool_call>{"name":"f","arguments":{"a": é', "a <tool_box> b", "<tool_call>",
    ],
)  # fmt: skip
@pytest.mark.parametrize("limit", [{}, {"max_tokens": 30}, {"parallel_tool_calls": False}, {"logprobs": True}])
def test_a_stream_is_the_whole_answer(text: str, limit: dict[str, Any]) -> None:
    """TOL-03 and TOL-05."""
    body = {"reasoning_format": "think", **limit}
    choice = post(text, **body).json()["choices"][0]
    whole = seen(choice["message"], choice["finish_reason"])
    assert without_ids(merged(post(text, stream=True, **body))) == without_ids(whole)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_ended_for_its_length(stream: bool) -> None:
    response = post(TWO_CALLS, stream=stream, max_tokens=50)
    choice = None if stream else response.json()["choices"][0]
    answer = merged(response) if choice is None else seen(choice["message"], choice["finish_reason"])
    assert answer["finish_reason"] == "length"
    assert answer["tool_calls"][0]["function"]["arguments"] in '{"a": 1}'


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_comes_where_calls_are_not_parallel(stream: bool) -> None:
    """TOL-07."""
    response = post(TWO_CALLS, stream=stream, parallel_tool_calls=False)
    calls = merged(response)["tool_calls"] if stream else response.json()["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["f"]


@pytest.mark.parametrize("body", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_to_call_nothing_is_a_call(body: dict[str, Any]) -> None:
    """TOL-07."""
    choice = post(TWO_CALLS, **body).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TWO_CALLS, "stop")
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": "required", "tools": None}),
        ("tool_choice", {"tool_choice": NAMED, "tools": None}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "h"}}}),
        ("tool_choice", {"tool_choice": "perhaps"}),
        ("tool_choice", {"tool_choice": {"type": "function"}}),
        ("tool_choice", {"tool_choice": "required", "use_beam_search": True, "max_tokens": 5}),
        ("tool_choice", {"tool_choice": "required", "response_format": {"type": "json_object"}}),
        ("tools", {"tools": [{"type": "function"}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": ""}}]}),
        ("tools", {"tools": [{"type": "magic", "function": {"name": "f"}}]}),
        ("tools", {"tools": [{"function": {"name": "f", "parameters": "none"}}]}),
        ("tools", {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}], "tool_choice": "required"}),
        ("tools", {"tools": TOOLS * 600}),
        ("tools", {"tool_format": "none"}),
        ("tools", {"tool_format": "auto"}),
    ],
)
def test_choices_that_cannot_be_honoured_are_refused(field: str, body: dict[str, Any], stream: bool) -> None:
    """TOL-07."""
    response = post("hello", stream=stream, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(("choice", "others"), [("auto", None), ("required", {"f", "g"}), (NAMED, {"g"}), (None, None)])
def test_a_choice_that_demands_a_call_becomes_a_grammar(choice: Any, others: set[str] | None) -> None:
    """TOL-07."""
    engine = engine_saying("hello")
    assert post("", engine=engine, tool_choice=choice).status_code == 200
    structured = engine.requests[0].sampling.structured
    if others is None:
        assert structured is None
    else:
        assert isinstance(structured, StructuredOutput)
        grammar = structured.grammar or ""
        assert {name for name in "fg" if f'\\"name\\": \\"{name}\\"' in grammar} == others


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_withheld_comes_at_the_end(stream: bool) -> None:
    """TOL-03."""
    response = post("a <tool_c", stream=stream)
    content = merged(response)["content"] if stream else response.json()["choices"][0]["message"]["content"]
    assert content == "a <tool_c"


@pytest.mark.parametrize(
    ("template", "settings", "start"),
    [
        (CHAT_TEMPLATE, {}, "start: calls"),
        (CHAT_TEMPLATE, {"reasoning_format": "think"}, 'start: ("<think>" thought)? calls'),
        (CHAT_TEMPLATE + "<think>\n", {}, "start: thought calls"),
        (CHAT_TEMPLATE + "<think>\n", {"reasoning_format": "none"}, "start: calls"),
    ],
)
def test_reasoning_may_come_before_a_demanded_call(template: str, settings: dict[str, str], start: str) -> None:
    engine = engine_saying("hello")
    post("", engine=engine, template=template, tool_choice="required", **settings)
    assert (engine.requests[0].sampling.structured.grammar or "").split("\n")[0] == start


def test_a_demanded_call_has_the_special_tokens_of_its_format() -> None:
    backend = byte_tokenizer().backend
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    engine = engine_saying("hello", Tokenizer(backend, special_tokens={"eos_token": "</s>"}))
    post("", engine=engine, tool_format="mistral", tool_choice="required")
    assert 'calls: <[257]> "["' in (engine.requests[0].sampling.structured.grammar or "")
    assert not engine.requests[0].sampling.skip_special_tokens


def test_the_format_is_what_the_template_shows() -> None:
    text = '{"name": "f", "parameters": {}}'
    template = CHAT_TEMPLATE + "{# <|python_tag|> #}"
    message = post(text, template=template, tool_format="auto").json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "f"


def test_ids_have_the_form_that_the_template_takes() -> None:
    message = post('[TOOL_CALLS]f{"a": 1}', tool_format="mistral").json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


def test_tools_reach_the_template_as_they_were_sent() -> None:
    engine = engine_saying("hello")
    post("", engine=engine, template="{{ tools | tojson }}", tools=[{"function": {"name": "f", "x": None}}])
    prompt = engine.tokenizer.decode(engine.requests[0].prompt_token_ids)
    assert json.loads(prompt) == [{"type": "function", "function": {"name": "f", "x": None}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("extra", [{}, {"tools": None}, {"tool_choice": "none"}])
def test_stop_strings_end_an_answer_alike_with_tools_and_without(extra: dict[str, Any], stream: bool) -> None:
    """STP-03: the engine alone looks for them, and what comes of its text ends as it does."""
    engine = engine_saying("hello")
    response = post("", engine=engine, stop=["x"], stream=stream, **extra)
    answer = merged(response) if stream else seen(response.json()["choices"][0]["message"], "stop")
    assert (answer["content"], answer["finish_reason"]) == ("hello", "stop")
    assert engine.requests[0].sampling.stop_strings == ["x"]
