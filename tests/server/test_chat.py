"""``/v1/chat/completions``: what comes back for what is sent."""

import pytest
from openai.types.chat import ChatCompletion

from .conftest import Post, ScriptedEngine, app_for, ask


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def test_a_response_is_valid_for_the_strict_client(chat: Post) -> None:
    """INT-06."""
    answer = ChatCompletion.model_validate_json(chat().text, strict=True)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert set(chat().json()["choices"][0]["message"]) == {"role", "content", "refusal"}


def test_the_prompt_is_what_the_template_renders(engine: ScriptedEngine, chat: Post) -> None:
    chat(messages=[{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}])
    assert prompt_of(engine) == "<system>be kind</s><user>hi</s><assistant>"


def test_without_a_limit_the_rest_of_the_context_may_be_used(engine: ScriptedEngine, chat: Post) -> None:
    """VAL-11."""
    chat()
    assert engine.requests[0].max_tokens == 128 - len(engine.requests[0].prompt_token_ids)


def test_max_completion_tokens_wins_over_max_tokens(chat: Post) -> None:
    """VAL-11."""
    answer = chat(max_tokens=4, max_completion_tokens=2).json()
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("he", "length")
    assert chat(max_tokens=4).json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_an_assistant_that_only_called_tools_said_nothing(
    engine: ScriptedEngine, chat: Post, content: dict[str, object]
) -> None:
    """TPL-03 and TPL-04."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    chat(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call], **content}, result])
    assert prompt_of(engine) == "<user>x</s><assistant></s><tool>3</s><assistant>"


def test_text_parts_are_joined_with_newlines(engine: ScriptedEngine, chat: Post) -> None:
    """TPL-08."""
    chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
    assert prompt_of(engine) == "<user>a\nb</s><assistant>"


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, {"type": "sound"}, {"type": "text"}, {}, 7],
)
def test_parts_that_are_no_text_are_refused(chat: Post, part: object) -> None:
    """TPL-08 and SEC-02."""
    response = chat(messages=[{"role": "user", "content": [part]}])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_that_refuses_is_a_client_error(engine: ScriptedEngine, chat: Post, stream: bool) -> None:
    """TPL-01."""
    response = chat(messages=[{"role": "nobody", "content": "x"}], stream=stream)
    assert response.status_code == 400
    assert "nobody may not speak" in response.json()["error"]["message"]
    assert engine.requests == []


def test_a_model_without_a_template_says_what_to_use(engine: ScriptedEngine, chat: Post) -> None:
    engine.chat_template = None
    response = chat()
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_a_final_message_can_be_continued_and_echoed(engine: ScriptedEngine, chat: Post) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "Well, "}]
    answer = chat(messages=messages, continue_final_message=True, echo=True).json()
    assert prompt_of(engine) == "<user>x</s><assistant>Well, "
    assert answer["choices"][0]["message"]["content"] == "Well, hello"


def test_template_variables_reach_the_template(engine: ScriptedEngine, chat: Post) -> None:
    chat(chat_template_kwargs={"add_generation_prompt": False})
    assert prompt_of(engine) == "<user>hi</s>"
    assert chat(chat_template_kwargs={"messages": []}).json()["error"]["param"] == "chat_template_kwargs"
    assert chat(chat_template_kwargs={"self": 1}).json()["error"]["param"] == "chat_template_kwargs"


def test_a_request_brings_its_own_template_only_where_that_is_trusted(engine: ScriptedEngine, chat: Post) -> None:
    """SEC-03."""
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template": "{{ messages[0].content }}!"}
    assert chat(**body).json()["error"]["param"] == "chat_template"
    app = app_for(engine, trust_request_chat_template=True)
    assert ask(app, "POST", "/v1/chat/completions", json=body).status_code == 200
    assert prompt_of(engine) == "hi!"


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "required"}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("audio", {"audio": {"voice": "x"}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": "a"}}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(chat: Post, field: str, body: dict[str, object]) -> None:
    response = chat(**body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


def test_harmless_fields_and_the_forms_of_nothing_are_accepted(chat: Post) -> None:
    """VAL-06 and VAL-11."""
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s",
        "prompt_cache_key": "k", "reasoning_effort": "low", "parallel_tool_calls": False, "modalities": ["text"],
        "response_format": {"type": "text"}, "tools": [], "tool_choice": "none",
    }  # fmt: skip
    assert chat(**harmless).status_code == 200
    assert chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none").status_code == 200
    names = "temperature top_p max_tokens max_completion_tokens n stop seed logprobs top_logprobs logit_bias tools"
    others = "tool_choice response_format stream stream_options user"
    assert chat(**dict.fromkeys(f"{names} {others}".split())).status_code == 200
