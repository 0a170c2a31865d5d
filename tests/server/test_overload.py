"""A real engine with a short queue and little time."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import ServerProcess

LONG = {"prompt": "abc", "max_tokens": 19_000, "ignore_eos": True}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    from pageport.testing.tiny_model import write_tiny_llama  # torch: only where a model is served

    # Its context is so long that nobody fills it in the time there is.
    model = write_tiny_llama(tmp_path / "tiny", max_position_embeddings=20_000)
    (tmp_path / "keys").write_text("first\nsecond\n")
    options = ["--max-num-seqs", "1", "--max-queued-requests", "1", "--request-timeout", "2", "--num-kv-blocks", "1300"]
    process = ServerProcess(str(model), *options, "--api-key-file", str(tmp_path / "keys")).wait_until_ready()
    yield process
    process.stop()


def test_a_full_queue_refuses_and_the_rest_ends_in_time(server: ServerProcess) -> None:
    """One runs and one waits: the third is refused at once; the others are given up in time, and hold nothing more."""
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer second"}, timeout=30) as client:

        def wait_until(name: str, number: float = 1.0) -> None:
            while f"\npageport:{name} {number}" not in client.get("/metrics").text:
                time.sleep(0.02)

        answers: list[httpx.Response] = []
        waiter = threading.Thread(target=lambda: answers.append(client.post("/v1/completions", json=LONG)))
        with client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            waiter.start()
            wait_until("requests_waiting")
            refused = client.post("/v1/completions", json=LONG)
            last: Any = json.loads([line for line in lines if line][-1].removeprefix("data: "))
        waiter.join()
        for name in ("requests_running", "requests_waiting", "kv_blocks_used"):
            wait_until(name, 0.0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
    assert int(refused.headers["retry-after"]) > 0
    assert last["error"]["code"] == "timeout"
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (408, "timeout")
