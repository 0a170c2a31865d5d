"""``/v1/embeddings``."""

import base64
import struct
from typing import Any

import httpx
import pytest
from openai import OpenAI

from .conftest import ScriptedEngine, ServerProcess, app_for, ask


def embed(engine: ScriptedEngine, **body: Any) -> httpx.Response:
    return ask(app_for(engine), "POST", "/v1/embeddings", json=body)


def vectors(engine: ScriptedEngine, **body: Any) -> list[list[float]]:
    return [entry["embedding"] for entry in embed(engine, **body).json()["data"]]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"normalize": False, "pooling": "last"}, [3, -4, 12]),
        ({"normalize": False}, [1.5, -2, 6]),  # the mean of two tokens
        ({}, [3 / 13, -4 / 13, 12 / 13]),
        ({"dimensions": 2}, [0.6, -0.8]),
        ({"dimensions": 1, "normalize": False, "pooling": "last"}, [3]),
    ],
)
def test_an_embedding_is_pooled_cut_and_normalised(
    engine: ScriptedEngine, fields: dict[str, Any], expected: list[float]
) -> None:
    assert vectors(engine, input="ab", **fields) == [pytest.approx(expected)]


@pytest.mark.parametrize("given", ["ab", ["ab", "c"], [97, 98], [[97, 98], [99]]])
def test_every_form_of_input_is_counted_and_answered_in_order(engine: ScriptedEngine, given: Any) -> None:
    answer = embed(engine, input=given).json()
    several = isinstance(given[0], list) or (isinstance(given, list) and isinstance(given[0], str))
    assert [entry["index"] for entry in answer["data"]] == list(range(2 if several else 1))
    assert (
        answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        if several
        else {"prompt_tokens": 2, "total_tokens": 2}
    )
    assert (answer["object"], answer["model"], answer["data"][0]["object"]) == ("list", "org/tiny", "embedding")


def test_base64_is_little_endian_float32(engine: ScriptedEngine) -> None:
    """EMB-01: what the official client asks for."""
    (text,) = vectors(engine, input="ab", encoding_format="base64", normalize=False, pooling="last")
    assert struct.unpack("<3f", base64.b64decode(str(text))) == (3, -4, 12)


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": "a" * 500}, "input"),
        ({"input": ["a"] * 3000}, "input"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_field(
    engine: ScriptedEngine, body: dict[str, Any], parameter: str
) -> None:
    response = embed(engine, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, parameter)


def test_the_official_client_gets_the_same_in_both_encodings(tiny_model: str) -> None:
    """EMB-01."""
    server = ServerProcess(tiny_model, "--num-kv-blocks", "64", "--max-model-len", "128").wait_until_ready()
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    texts = ["Hello", "a longer text of several words", "Hello"]
    default = client.embeddings.create(model=tiny_model, input=texts)
    numbers = client.embeddings.create(model=tiny_model, input=texts, encoding_format="float")
    for one, other in zip(default.data, numbers.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert default.data[0].embedding == default.data[2].embedding != default.data[1].embedding
    server.wait_until_idle()
    server.stop()
