"""The official npm client. `make test-all` installs it; node has to be there."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .test_openai_client_methods import CALL, Served
from .test_tools import engine_saying

pytestmark = pytest.mark.full
CLIENT = Path(__file__).parent / "npm_client" / "client.mjs"
TEXT = '{"city": "Oslo", "degrees": 3}'


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[str, Any]]:
    """What the client got."""
    node = shutil.which("node")
    assert node is not None, "node is not installed"
    servers = [Served(engine_saying(text)) for text in (TEXT, CALL)]
    urls = [served.options["base_url"] for served in servers]
    ended = subprocess.run([node, str(CLIENT), *urls], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    yield json.loads(ended.stdout)
    for served in servers:
        served.close()


@pytest.mark.parametrize(
    "name",
    [
        "completion",
        "completionStreamed",
        "chat",
        "chatStreamed",
        "chatHelper",
        "response",
        "retrieved",
        "responseHelper",
    ],
)
def test_every_way_to_ask_gives_the_same_text(seen: dict[str, Any], name: str) -> None:
    assert seen[name] == TEXT


def test_models_embeddings_and_counts_are_read(seen: dict[str, Any]) -> None:
    assert (seen["models"], seen["model"], seen["inputItems"]) == (["org/tiny"], "org/tiny", ["message"])
    assert seen["chatParsed"] == json.loads(TEXT)
    assert seen["embedding"] == pytest.approx(seen["embeddingNumbers"])
    assert len(seen["embedding"]) == 3
    assert seen["usage"] == seen["usageStreamed"]
    assert seen["usage"]["completion_tokens"] == len(TEXT) + 1


def test_a_response_s_events_are_known_to_the_client(seen: dict[str, Any]) -> None:
    assert seen["responseEvents"][0] == "response.created"
    assert seen["responseEvents"][-1] == "response.completed"


@pytest.mark.parametrize("name", ["call", "callStreamed", "responseCall"])
def test_a_call_is_read_however_it_comes(seen: dict[str, Any], name: str) -> None:
    (call,) = seen[name]
    assert (call["name"], json.loads(call["arguments"])) == ("Weather", {"city": "Oslo", "degrees": 3})


def test_refusals_are_the_client_s_own_exceptions(seen: dict[str, Any]) -> None:
    assert seen["refused"] == ["BadRequestError", 400, "temperature"]
    assert seen["deleted"] == ["NotFoundError", "response_not_found"]
    assert seen["requestId"] == ["mine", "mine"]
    assert seen["firstRole"] == "assistant"
