"""Reasoning in ``/v1/chat/completions``: beside the content, and counted."""

from typing import Any

import pytest
from tokenizers import AddedToken

from pageport.text.tokenizer import Tokenizer

from .conftest import CHAT_TEMPLATE, byte_tokenizer
from .test_tools import engine_saying, merged, post

THOUGHT = "<think>\nwhy?\n</think>\n\nso"
OPENING = CHAT_TEMPLATE + "<think>\n"


def answer(text: str, stream: bool, **body: Any) -> tuple[Any, Any, str]:
    """Return content, reasoning and finish reason."""
    response = post(text, stream=stream, **{"tools": None, "reasoning_format": "think"} | body)
    if stream:
        whole = merged(response)
        return whole["content"] or None, whole["reasoning_content"] or None, whole["finish_reason"]
    choice = response.json()["choices"][0]
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    return message["content"], message.get("reasoning_content"), choice["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        (THOUGHT, {}, ("so", "why?", "stop")),
        (THOUGHT, {"include_reasoning": False}, ("so", None, "stop")),
        (THOUGHT, {"reasoning_format": "none"}, (THOUGHT, None, "stop")),
        (THOUGHT, {"reasoning_format": "auto"}, (THOUGHT, None, "stop")),
        ("why?\n</think>\n\nso", {"reasoning_format": "auto", "template": OPENING}, ("so", "why?", "stop")),
        ("why?", {"template": OPENING}, (None, "why?", "stop")),
        (THOUGHT, {"max_tokens": 10}, (None, "wh", "length")),
        ("so", {}, ("so", None, "stop")),
        ("{}", {"template": OPENING, "response_format": {"type": "json_object"}}, ("{}", None, "stop")),
    ],
)
def test_reasoning_stands_beside_the_content(text: str, body: Any, expected: Any, stream: bool) -> None:
    """STP-09: nothing of the markers is content, wherever the answer ends."""
    assert answer(text, stream, **body) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_comes_before_calls(stream: bool) -> None:
    text = THOUGHT.replace("so", '<tool_call>{"name": "g"}</tool_call>')
    tools = [{"function": {"name": "g"}}]
    assert answer(text, stream, tools=tools) == (None, "why?", "tool_calls")


@pytest.mark.parametrize(
    ("text", "template", "num_tokens"),
    [
        (THOUGHT, CHAT_TEMPLATE, len("<think>\nwhy?\n</think>")),
        ("wähy</think>so", OPENING, len(b"w\xc3\xa4hy</think>")),
        ("wä", OPENING, 3),
        ("so", CHAT_TEMPLATE, 0),
        ("<th", CHAT_TEMPLATE, 0),
    ],
)
def test_tokens_of_reasoning_are_counted(text: str, template: str, num_tokens: int) -> None:
    body: dict[str, Any] = {"tools": None, "reasoning_format": "think", "template": template}
    usage = post(text, **body).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": num_tokens}
    assert usage["completion_tokens"] == len(text.encode()) + 1
    last = post(text, stream=True, stream_options={"include_usage": True}, **body).text.split("\n\n")[-3]
    assert f'"reasoning_tokens":{num_tokens}}}' in last


def test_markers_that_are_special_tokens_are_kept_in_the_text() -> None:
    backend = byte_tokenizer().backend
    backend.add_special_tokens([AddedToken("<think>", special=True), AddedToken("</think>", special=True)])
    engine = engine_saying(THOUGHT, Tokenizer(backend, special_tokens={"eos_token": "</s>"}))
    post("", engine=engine, tools=None, reasoning_format="think")
    assert not engine.requests[0].sampling.skip_special_tokens
    post("", engine=engine, tools=None, reasoning_format="none")
    assert engine.requests[1].sampling.skip_special_tokens
