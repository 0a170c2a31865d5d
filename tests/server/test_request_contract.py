"""Fields: known, harmless, unknown, null; limits of what one request may ask for."""

import logging
import typing
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import BaseModel

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig
from pageport.server.protocol.chat import ChatMessage, ChatRequest, ContentPart
from pageport.server.protocol.common import StreamOptions
from pageport.server.protocol.completions import CompletionRequest
from pageport.server.protocol.responses import InputItem, InputPart, ResponseRequest, TextOptions
from pageport.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from pageport.server.service import HARMLESS_FIELDS, UNSUPPORTED_FIELDS

from .conftest import ScriptedEngine, app_for, ask

MESSAGES = [{"role": "user", "content": "hi"}]
# The shortest body that each endpoint answers.
BODIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "a"}),
    "/v1/chat/completions": (ChatRequest, {"messages": MESSAGES}),
    "/v1/responses": (ResponseRequest, {"input": "a"}),
    "/tokenize": (TokenizeRequest, {"prompt": "a"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}
FIELDS = [
    (path, name)
    for path, (kind, body) in BODIES.items()
    for name in (*kind.model_fields, *sorted(HARMLESS_FIELDS | UNSUPPORTED_FIELDS), "unknown_x")
    if name not in body
]
VARYING = {"id", "created", "created_at", "completed_at"}


def constant(answer: Any) -> Any:
    """Leave out what differs between two answers to the same question."""
    if isinstance(answer, dict):
        return {name: constant(value) for name, value in answer.items() if name not in VARYING}
    return [constant(item) for item in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, (_, body) in BODIES.items()])
@pytest.mark.parametrize("strict", [False, True])
def test_null_is_what_an_absent_field_is(engine: ScriptedEngine, path: str, body: dict[str, Any], strict: bool) -> None:
    """VAL-06: every field of every body, one by one and all at once."""
    app = app_for(engine, strict_requests=strict)
    plain = constant(ask(app, "POST", path, json=body).json())
    names = [name for asked, name in FIELDS if asked == path]
    for nulls in (*({name: None} for name in names), dict.fromkeys(names)):
        answer = ask(app, "POST", path, json=body | nulls)
        assert (answer.status_code, constant(answer.json())) == (200, plain), nulls


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (StreamOptions, {}),
        (ChatMessage, {"role": "user"}),
        (ContentPart, {"type": "text"}),
        (InputItem, {}),
        (InputPart, {"type": "text"}),
        (TextOptions, {}),
    ],
)
def test_null_is_what_an_absent_field_is_inside_too(kind: type[BaseModel], needed: dict[str, Any]) -> None:
    nulls = {name: None for name in kind.model_fields if name not in needed}
    assert kind.model_validate(needed | nulls).model_dump() == kind.model_validate(needed).model_dump()


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, (_, body) in BODIES.items() for name in body])
def test_null_is_refused_where_a_value_is_needed(engine: ScriptedEngine, path: str, name: str) -> None:
    response = ask(app_for(engine), "POST", path, json={name: None})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ChatRequest, chat_create_params.CompletionCreateParamsBase),
        (ResponseRequest, response_create_params.ResponseCreateParamsBase),
    ],
)
def test_every_parameter_of_the_official_client_is_known(kind: type[BaseModel], parameters: type) -> None:
    """VAL-11: honoured, without meaning here, or refused; never a surprise."""
    known = {*kind.model_fields, *HARMLESS_FIELDS, *UNSUPPORTED_FIELDS}
    assert set(typing.get_type_hints(parameters, include_extras=True)) - known == set()


@pytest.mark.parametrize("path", BODIES)
def test_a_field_without_meaning_here_changes_nothing(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """VAL-11: strict or not, and nothing is logged."""
    kind, body = BODIES[path]
    names = sorted(HARMLESS_FIELDS - {"modalities"} - set(kind.model_fields))
    with caplog.at_level(logging.WARNING, "pageport"):
        for name in names:
            answer = ask(app_for(engine, strict_requests=True), "POST", path, json=body | {name: {"some": "value"}})
            assert answer.status_code == 200, name
    assert caplog.records == []


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_would_change_the_answer_is_refused(engine: ScriptedEngine, path: str) -> None:
    kind, body = BODIES[path]
    for name in sorted(UNSUPPORTED_FIELDS - set(kind.model_fields)):
        response = ask(app_for(engine), "POST", path, json=body | {name: {"some": "value"}})
        assert (response.status_code, response.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_field_is_refused_where_requests_are_strict(engine: ScriptedEngine, path: str) -> None:
    """VAL-11."""
    body = BODIES[path][1] | {"unknown_x": 0}
    response = ask(app_for(engine, strict_requests=True), "POST", path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "unknown_x")
    assert "strict-requests" in response.json()["error"]["message"]
    assert ask(app_for(engine), "POST", path, json=body).status_code == 200


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [
        ("max_n", {"n": 2}, {"n": 3}),
        ("max_n", {"n": 1, "best_of": 2}, {"n": 1, "best_of": 3}),
        ("max_stop_strings", {"stop": ["x", "y"]}, {"stop": ["x", "y", "z"]}),
        ("max_logit_biases", {"logit_bias": {"1": 1, "2": 1}}, {"logit_bias": {"1": 1, "2": 1, "3": 1}}),
        ("max_prompts", {"prompt": ["a", "b"]}, {"prompt": ["a", "b", "c"]}),
        ("max_prompts", {"prompt": [1, 2, 3]}, {"prompt": [[1], [2], [3]]}),
        ("max_choices", {"prompt": ["a", "b"]}, {"prompt": ["a", "b"], "n": 2}),
    ],
)
def test_each_limit_holds_where_it_is_set(
    engine: ScriptedEngine, setting: str, allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    """SEC-08 and SEC-11."""
    app = app_for(engine, **{setting: 2})
    assert ask(app, "POST", "/v1/completions", json={"prompt": "a"} | allowed).status_code == 200
    num_started = len(engine.requests)
    response = ask(app, "POST", "/v1/completions", json={"prompt": "a"} | refused)
    assert (response.status_code, response.json()["error"]["param"] in refused) == (400, True)
    assert len(engine.requests) == num_started


@pytest.mark.parametrize(
    "settings", [{"max_n": 0}, {"max_body_bytes": -1}, {"max_stop_strings": 65}, {"max_stored_responses": -1}]
)
def test_an_impossible_limit_is_refused_at_start(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        ServerConfig(**settings)  # type: ignore[arg-type]
