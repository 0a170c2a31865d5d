"""The soak test in short, and that it notices what is wrong."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest
import soak

from pageport.testing.tiny_model import write_tiny_llama


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("requests", "concurrency"), [(150, 16), pytest.param(5000, 64, marks=pytest.mark.full)])
def test_a_server_survives_what_clients_do(tmp_path: Path, requests: int, concurrency: int) -> None:
    with soak.served(str(write_tiny_llama(tmp_path / "tiny"))) as server:
        outcome = asyncio.run(soak.soak(server.url, server.pid, requests=requests, concurrency=concurrency, seed=1))
    assert set(outcome.done) == {"plain", "streamed", "left", "cut", "wrong", "late"}
    assert sum(outcome.done.values()) == requests


ANSWER = {"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("kind", "response"),
    [
        ("plain", httpx.Response(500)),
        ("plain", httpx.Response(200, json=ANSWER)),
        ("late", httpx.Response(503, json={})),
        ("late", httpx.Response(200, json=ANSWER)),
        ("wrong", httpx.Response(200, json=ANSWER)),
        ("wrong", httpx.Response(500, json={"error": {"message": "?"}})),
        ("streamed", httpx.Response(200, text="data: [DONE]\n\n")),
        ("streamed", httpx.Response(200, text='data: {"choices": []}\n\n')),
    ],
)
def test_a_wrong_answer_of_any_kind_is_noticed(kind: str, response: httpx.Response) -> None:
    async def run() -> None:
        transport = httpx.MockTransport(lambda _: response)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            question = soak.Question(soak.COMPLETIONS, {"prompt": "x"})
            await getattr(soak.Soak(client, random.Random(0), [question], alone=["a"]), kind)()

    with pytest.raises(soak.SoakFailed):
        asyncio.run(run())
