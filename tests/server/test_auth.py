"""API keys and CORS."""

from pathlib import Path

import pytest

from pageport.errors import ConfigurationError
from pageport.server.api_keys import read_api_keys
from pageport.server.config import ServerConfig

from .conftest import ScriptedEngine, app_for, ask

KEYS = ("secret", "second ключ")


def test_every_route_but_the_probes_needs_a_key(engine: ScriptedEngine) -> None:
    """SEC-05: default deny, walked over the published routes."""
    app = app_for(engine, api_key=KEYS)
    paths = {*app.openapi()["paths"], "/openapi.json", "/docs", "/nope"}
    assert {"/v1/completions", "/v1/chat/completions", "/metrics", "/version"} <= paths
    open_paths = {path for path in paths if ask(app, "GET", path).status_code != 401}
    assert open_paths == {"/health", "/ready"}


@pytest.mark.parametrize(
    "value",
    [
        None, "", "secret", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "Bearer secret x", "Bearersecret",
        "Bearer секрет".encode(), "Bearer \xe9".encode("latin-1"), b"Bearer " + b"x" * 1_000_000, "Bearer SECRET",
    ],
)  # fmt: skip
def test_a_wrong_key_is_unauthorized(engine: ScriptedEngine, value: str | bytes | None) -> None:
    """SEC-05 and SEC-06."""
    headers = {} if value is None else {"authorization": value}
    response = ask(app_for(engine, api_key=KEYS), "GET", "/v1/models", headers=headers)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert "secret" not in response.text


@pytest.mark.parametrize("value", ["Bearer secret", "bearer secret", "Bearer   secret ", "Bearer second ключ".encode()])
def test_each_configured_key_opens(engine: ScriptedEngine, value: str | bytes) -> None:
    """SEC-06."""
    app = app_for(engine, api_key=KEYS)
    assert ask(app, "GET", "/v1/models", headers={"authorization": value}).status_code == 200


def test_two_authorization_headers_open_nothing(engine: ScriptedEngine) -> None:
    """SEC-05."""
    headers = [("authorization", "Bearer secret"), ("authorization", "Bearer secret")]
    assert ask(app_for(engine, api_key=KEYS), "GET", "/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/HEALTH", "/health/../v1/models", "/v1/models/", "//v1/models"]
)
def test_no_spelling_of_a_path_goes_round_the_key(engine: ScriptedEngine, path: str) -> None:
    """SEC-05."""
    assert ask(app_for(engine, api_key=KEYS), "GET", f"http://test{path}").status_code == 401


def test_keys_from_files_lose_their_line_ends(engine: ScriptedEngine) -> None:
    """NET-05."""
    app = app_for(engine, api_key=("\ufeffsecret\r\n",))
    assert ask(app, "GET", "/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200


def test_keys_may_have_names_for_the_log(engine: ScriptedEngine, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("bob: hunter2\nplain\nover:there\n")
    config = ServerConfig(api_key=("alice: a: b", "first"), api_key_file=str(tmp_path / "keys"))
    assert read_api_keys(config) == (
        ("alice", "a: b"), ("key-2", "first"), ("bob", "hunter2"), ("key-4", "plain"), ("key-5", "over:there"),
    )  # fmt: skip
    app = app_for(engine, api_key=config.api_key)
    for key, status in (("a: b", 200), ("alice: a: b", 401), ("alice", 401)):
        assert ask(app, "GET", "/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == status


def test_an_empty_key_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="api-key is empty"):
        ServerConfig(api_key=("secret", " \n"))


def test_a_preflight_needs_no_key_and_every_answer_carries_cors_headers(engine: ScriptedEngine) -> None:
    """NET-01."""
    app = app_for(engine, api_key=KEYS, allowed_origins=("https://a.example",))
    origin = {"origin": "https://a.example"}
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    preflight = ask(app, "OPTIONS", "/v1/completions", headers={**origin, **asked})
    assert preflight.status_code == 200
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    for key, status in (("secret", 200), ("wrong", 401)):
        for stream in (False, True):
            headers = {**origin, "authorization": f"Bearer {key}"}
            answer = ask(app, "POST", "/v1/completions", json={"prompt": "a", "stream": stream}, headers=headers)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "https://a.example")
            assert "access-control-allow-credentials" not in answer.headers


def test_without_allowed_origins_there_are_no_cors_headers(engine: ScriptedEngine) -> None:
    """NET-01."""
    response = ask(app_for(engine), "GET", "/health", headers={"origin": "https://a.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
