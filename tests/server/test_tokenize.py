"""``/tokenize`` and ``/detokenize``."""

from typing import Any

import httpx
import pytest

from .conftest import ScriptedEngine, app_for, ask

MESSAGES = [{"role": "user", "content": "hi"}]


def post(engine: ScriptedEngine, path: str, **body: Any) -> httpx.Response:
    return ask(app_for(engine), "POST", path, json=body)


@pytest.mark.parametrize("text", ["", "ab", "é日\0", "a</s>b", "x" * 10_000, "日" * 5_000])
def test_a_text_comes_back_from_its_tokens(engine: ScriptedEngine, text: str) -> None:
    answer = post(engine, "/tokenize", prompt=text).json()
    assert answer["tokens"] == engine.tokenizer.encode(text)
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 128)
    assert answer["token_strs"] is None
    assert post(engine, "/detokenize", tokens=answer["tokens"]).json() == {"prompt": text}


def test_token_strings_stand_for_parts_of_characters(engine: ScriptedEngine) -> None:
    answer = post(engine, "/tokenize", prompt="aé</s>", return_token_strs=True).json()
    assert answer["token_strs"] == ["a", "\ufffd", "\ufffd", "</s>"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "<user>hi</s><assistant>"),
        ({"add_generation_prompt": False}, "<user>hi</s>"),
        ({"continue_final_message": True}, "<user>hi"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
            "<user>hi</s><assistant>",
        ),
        ({"tools": [], "chat_template_kwargs": {}}, "<user>hi</s><assistant>"),
    ],
)
def test_messages_are_tokenised_as_the_chat_endpoint_does(
    engine: ScriptedEngine, options: dict[str, Any], text: str
) -> None:
    tokens = post(engine, "/tokenize", messages=MESSAGES, **options).json()["tokens"]
    assert tokens == engine.tokenizer.encode(text)
    post(engine, "/v1/chat/completions", messages=MESSAGES, **options)
    assert engine.requests[-1].prompt_token_ids == tokens


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1, 257]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    engine: ScriptedEngine, path: str, body: dict[str, Any], field: str
) -> None:
    """VAL-03."""
    response = post(engine, path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_an_unknown_model_is_not_found(engine: ScriptedEngine, path: str) -> None:
    """VAL-08."""
    assert post(engine, path, model="other", prompt="a", tokens=[1]).status_code == 404
