"""Nothing that a client sends is the server's fault: every refusal is a 400 that names the field."""

import json
import logging
from typing import Any

import pytest

from .conftest import Post, ScriptedEngine, app_for, ask


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[", b"[]", b"7", b"null", b"[" * 100_000, b'{"prompt":"\xff"}', '{"prompt":"a"}'.encode("utf-16"),
        b'{"prompt":"caf\\ud83c"}', b'{"prompt":"\\udd25 ok"}', b'{"prompt":"a","stop":"\\ud83c"}',
        b'{"prompt":"a","user":"\\ud83c"}', b'{"prompt":"a","\\ud83c":1}',
        b'{"prompt":"a","seed":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_body_that_cannot_be_read_is_refused(engine: ScriptedEngine, path: str, body: bytes) -> None:
    """VAL-09."""
    response = ask(app_for(engine), "POST", path, content=body)
    assert response.status_code == 400
    assert "cannot be read" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["\0", "\uffff", "\ufeff", "a" + "\u0301" * 40, "\r\n"])
def test_strange_but_valid_text_is_a_prompt(complete: Post, text: str) -> None:
    """VAL-09."""
    assert complete(prompt=text).status_code == 200


@pytest.mark.parametrize(
    "prompt",
    [
        [-1], [[-1]], [257], [10**12], [10**30], [1.5], [True], [[True]], [[1, 2], "x"], ["x", [1]], [[]], [], "", [""],
        ["a", ""], {"a": 1}, 7, [None], [[None]], [[[1]]],
    ],
)  # fmt: skip
def test_a_prompt_that_is_none_is_refused(engine: ScriptedEngine, complete: Post, prompt: Any) -> None:
    """VAL-03 and LIM-05."""
    response = complete(prompt=prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", -1), ("n", 129), ("n", 10**6), ("n", 10**18), ("best_of", 10**6), ("temperature", -1),
        ("temperature", 1e30), ("temperature", "x"), ("top_p", -1), ("top_p", 2), ("min_p", 2), ("top_k", -5),
        ("repetition_penalty", 0), ("presence_penalty", 1e38), ("frequency_penalty", [1]), ("max_tokens", -1),
        ("max_tokens", 10**9), ("logprobs", 21), ("logprobs", -1), ("prompt_logprobs", 21), ("logit_bias", {"257": 5}),
        ("logit_bias", {"-1": 3}), ("logit_bias", {"x": 3}), ("logit_bias", [1]), ("stop_token_ids", [300]),
        ("stop_token_ids", [-5]), ("stop_token_ids", [1.5]), ("allowed_token_ids", [257]), ("allowed_token_ids", []),
        ("bad_words", [""]), ("bad_words", ["x"] * 50_000), ("stop", ["x"] * 500), ("stop", ["x" * 10_000]),
        ("stop", 5), ("stop", [1]), ("stop_token_ids", [1] * 100_000), ("seed", 10**30), ("seed", "x"),
        ("truncate_prompt_tokens", -2), ("truncate_prompt_tokens", 0), ("min_tokens", 17), ("stream", "maybe"),
        ("stream_options", 3), ("priority", "high"), ("cache_salt", ""), ("cache_salt", 3), ("echo", "x"),
        ("suffix", "x"), ("response_format", {"type": "json_schema"}), ("guided_choice", []),
    ],
)  # fmt: skip
def test_an_impossible_value_is_refused_by_name(engine: ScriptedEngine, complete: Post, field: str, value: Any) -> None:
    """VAL-01, VAL-04, SMP-07, SEC-08, SEC-11."""
    response = complete(**{field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert len(response.text) < 600
    assert engine.requests == []


def test_a_request_over_the_context_names_the_true_limit(complete: Post) -> None:
    """LIM-01."""
    error = complete(prompt="abcdefgh", max_tokens=125).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert all(number in error["message"] for number in ("128", "8", "125"))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("model", ["no-such-model", "", "ORG/TINY", "org/tiny ", "x\0\n" * 3000, "../../etc/passwd"])
def test_an_unknown_model_is_not_found_before_a_stream_starts(engine: ScriptedEngine, path: str, model: str) -> None:
    """VAL-08 and INT-04."""
    body = {"model": model, "stream": True, "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    response = ask(app_for(engine), "POST", path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert len(error["message"]) < 300
    assert "\0" not in error["message"]
    assert engine.requests == []


def test_an_absent_or_null_model_is_the_one_served(complete: Post) -> None:
    """VAL-08."""
    assert complete().json()["model"] == complete(model=None).json()["model"] == "org/tiny"


def test_an_unknown_field_is_ignored_with_one_line_in_the_log(
    engine: ScriptedEngine, complete: Post, caplog: pytest.LogCaptureFixture
) -> None:
    """VAL-11."""
    with caplog.at_level(logging.WARNING, "pageport"):
        for _ in range(3):
            assert complete(unknown_x=1).status_code == 200
    assert [record.getMessage() for record in caplog.records] == ["Ignoring the unknown request field 'unknown_x'."]


def test_remembered_unknown_fields_are_bounded(complete: Post, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pageport"):
        assert complete(**{f"x{i}": 1 for i in range(1000)}).status_code == 200
    assert len(caplog.records) == 256


def test_the_content_type_does_not_matter(engine: ScriptedEngine) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
        body = json.dumps({"prompt": "a"})
        response = ask(app_for(engine), "POST", "/v1/completions", content=body, headers={"content-type": kind})
        assert response.status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1", 404), ("HEAD", "/v1", 404)])
def test_other_paths_are_not_found(engine: ScriptedEngine, method: str, path: str, status: int) -> None:
    """INT-06."""
    assert ask(app_for(engine), method, path).status_code == status


def test_another_method_is_not_allowed(engine: ScriptedEngine) -> None:
    response = ask(app_for(engine), "GET", "/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "GET" in response.json()["error"]["message"]


def test_a_fault_of_ours_says_nothing_of_the_inside(engine: ScriptedEngine, complete: Post) -> None:
    engine.info = None  # type: ignore[assignment]
    response = complete()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "NoneType" not in response.text
