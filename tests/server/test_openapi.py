"""The description of the server: what every route may answer."""

from typing import Any

import jsonschema
import pytest

from .conftest import ScriptedEngine, app_for, ask

TOO_LONG = {"prompt": "a" * 500}
# How to be refused: settings, method, path, arguments; status.
REFUSALS: list[tuple[dict[str, Any], str, str, dict[str, Any], int]] = [
    ({}, "POST", "/v1/completions", {"content": b"{"}, 400),
    ({}, "POST", "/v1/completions", {"json": TOO_LONG}, 400),
    ({"api_key": ("secret",)}, "GET", "/v1/models", {}, 401),
    ({}, "GET", "/v1/models/other", {}, 404),
    ({}, "DELETE", "/v1/responses/none", {}, 404),
    ({}, "GET", "/v1/responses/none/input_items?limit=x", {}, 400),
    ({}, "POST", "/v1/completions", {"json": {"prompt": "a", "timeout": 1e-9}}, 408),
    ({"max_body_bytes": 100}, "POST", "/tokenize", {"json": TOO_LONG}, 413),
    ({"max_queued_tokens": 1}, "GET", "/v1/responses/none", {}, 404),
]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    described: dict[str, Any] = ask(app_for(ScriptedEngine()), "GET", "/openapi.json").json()
    return described


def test_every_route_says_how_it_fails(schema: dict[str, Any]) -> None:
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) > 10
    for operation in operations:
        responses = operation["responses"]
        assert "422" not in responses
        for status in ("4XX", "5XX"):
            body = responses[status]["content"]["application/json"]["schema"]
            assert body == {"$ref": "#/components/schemas/ErrorResponse"}
            assert {"Retry-After", "X-Request-Id"} <= set(responses[status]["headers"])
        assert all("X-Request-Id" in response["headers"] for response in responses.values())


@pytest.mark.parametrize(("settings", "method", "path", "arguments", "status"), REFUSALS)
def test_refusals_are_as_described(
    schema: dict[str, Any], settings: dict[str, Any], method: str, path: str, arguments: dict[str, Any], status: int
) -> None:
    response = ask(app_for(ScriptedEngine(), **settings), method, path, **arguments)
    assert response.status_code == status
    jsonschema.validate(response.json(), {"$ref": "#/components/schemas/ErrorResponse", **schema})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"error": {"message": "no more"}}, {"$ref": "#/components/schemas/ErrorResponse", **schema})


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_probe_s_bad_news_is_described(schema: dict[str, Any], path: str) -> None:
    engine = ScriptedEngine()
    engine.error = "gone"
    described = schema["paths"][path]["get"]["responses"]["503"]["content"]["application/json"]["schema"]
    jsonschema.validate(ask(app_for(engine), "GET", path).json(), {**schema, **described})
