"""Logprobs, for both endpoints."""

from typing import Any

import pytest

from pageport.engine.outputs import ChoiceDelta, Logprob
from pageport.server.logprobs import ScoredTokens
from pageport.server.protocol.completions import CompletionRequest

from .conftest import Post, ScriptedEngine, app_for, ask, byte_tokenizer, events


def test_echo_scores_every_prompt_token_but_the_first(complete: Post) -> None:
    """LOG-01."""
    columns = complete(prompt="abcdefgh", echo=True, logprobs=5, max_tokens=1).json()["choices"][0]["logprobs"]
    assert columns["tokens"] == list("abcdefghh")
    assert columns["token_logprobs"] == [None] + [-0.5] * 8
    assert columns["top_logprobs"][0] is None
    assert columns["top_logprobs"][1] == {"b": -0.5, "c": -9999.0}
    assert columns["text_offset"] == list(range(9))


def test_streamed_columns_joined_are_the_whole_ones(complete: Post) -> None:
    whole = complete(echo=True, logprobs=1).json()["choices"][0]["logprobs"]
    joined: dict[str, list[Any]] = {name: [] for name in whole}
    for chunk in events(complete(echo=True, logprobs=1, stream=True))[:-1]:
        for name, values in chunk["choices"][0]["logprobs"].items():
            joined[name] += values
    assert joined == whole


def test_special_tokens_outside_the_text_take_no_room(complete: Post) -> None:
    columns = complete(prompt=[256, 97, 256, 98], echo=True, logprobs=0, max_tokens=1).json()["choices"][0]["logprobs"]
    assert columns["tokens"] == ["</s>", "a", "</s>", "b", "h"]
    assert columns["text_offset"] == [0, 0, 1, 1, 2]


def test_special_tokens_in_the_prompt_as_sent_take_their_room(complete: Post) -> None:
    (choice,) = complete(prompt="a</s>b", echo=True, logprobs=0, max_tokens=1).json()["choices"]
    assert choice["text"] == "a</s>bh"
    assert choice["logprobs"]["text_offset"] == [0, 1, 5, 6]


def test_bytes_of_chat_logprobs_join_to_the_message() -> None:
    """LOG-04."""
    text = "naïve 🔥"
    body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 1}
    (choice,) = ask(app_for(ScriptedEngine(text)), "POST", "/v1/chat/completions", json=body).json()["choices"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == text == choice["message"]["content"]
    assert content[-1]["token"] == "bytes:\\xa5"
    assert content[0] == {
        "token": "n", "logprob": -0.5, "bytes": [110], "top_logprobs": [{"token": "n", "logprob": -0.5, "bytes": [110]}]
    }  # fmt: skip


def test_partial_characters_keep_their_own_keys_and_offsets() -> None:
    """LOG-04: no two tokens share a key of ``top_logprobs``."""
    body = {"prompt": "a", "logprobs": 2}
    (choice,) = ask(app_for(ScriptedEngine("é!")), "POST", "/v1/completions", json=body).json()["choices"]
    columns = choice["logprobs"]
    assert columns["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert columns["top_logprobs"][0] == {"bytes:\\xc3": -0.5, "bytes:\\xc4": -9999.0}
    assert columns["text_offset"] == [0, 0, 1]


def test_no_logprobs_are_sent_unless_asked_for(chat: Post, complete: Post) -> None:
    assert chat().json()["choices"][0]["logprobs"] is None
    assert complete().json()["choices"][0]["logprobs"] is None
    assert complete(logprobs=0).json()["choices"][0]["logprobs"]["top_logprobs"][0] == {"h": -0.5}


def deltas(*steps: tuple[str, str], stop: str) -> list[ChoiceDelta]:
    """Make one delta for each (token, text released with it); the last one ends at ``stop``."""
    made = [
        ChoiceDelta(request_id="r", index=0, text=text, token_ids=[ord(token)], logprobs=[{ord(token): Logprob(-1.0)}])
        for token, text in steps
    ]
    made[-1].finish_reason, made[-1].stop_reason = "stop", stop
    return made


@pytest.mark.parametrize("includes_stop", [False, True])
def test_tokens_of_a_stop_string_are_shown_only_with_its_text(includes_stop: bool) -> None:
    """STP-04: logprobs do not outlast the text."""
    body = CompletionRequest(prompt="a", stop=[";y"], include_stop_str_in_output=includes_stop)
    scored = ScoredTokens(byte_tokenizer(), body)
    steps = deltas(("x", "x"), (";", ""), (";", ";"), ("y", ";y" if includes_stop else ""), stop=";y")
    shown = [len(scored.release(delta)) for delta in steps]
    assert shown == ([1, 1, 1, 1] if includes_stop else [1, 0, 1, 0])
