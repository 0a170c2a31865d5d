"""The streaming client against a small server."""

import asyncio
import json

import client
import pytest
from meter import Measurement
from workloads import Request

from .event_server import EventServer

MEASURED = Measurement(wall_s=2.0, own_cores=1.0, other_cores=0.0, steal_cores=0.0, peak_rss_mb=1.0)


def requests(count: int, max_tokens: int = 5) -> list[Request]:
    return [{"prompt": [20 + i, 30, 40], "max_tokens": max_tokens} for i in range(count)]


def send(server: EventServer, count: int, concurrency: int, max_tokens: int = 5) -> list[client.Answer]:
    async def go() -> list[client.Answer]:
        async with server.listen():
            endpoint = client.Endpoint(server.url, "tiny", extra={"cache_prompt": True})
            return await client.send_all(endpoint, requests(count, max_tokens), concurrency)

    return asyncio.run(go())


@pytest.mark.parametrize("chunked", [True, False])
def test_every_token_is_one_time_and_the_last_event_is_none(chunked: bool) -> None:
    (answer,) = send(EventServer(chunked=chunked), 1, 1)
    assert len(answer.chunk_times) == answer.num_tokens == 5


@pytest.mark.parametrize("chunk_bytes", [1, 7, 4096])
def test_lines_may_be_cut_anywhere_by_the_transfer_coding(chunk_bytes: int) -> None:
    (answer,) = send(EventServer(chunk_bytes=chunk_bytes), 1, 1)
    assert len(answer.chunk_times) == 5


def test_the_body_asks_for_token_ids_exact_length_and_usage() -> None:
    server = EventServer()
    send(server, 1, 1)
    (body,) = server.bodies
    assert body["prompt"] == [20, 30, 40]
    assert body["max_tokens"] == body["min_tokens"] == 5
    assert body["ignore_eos"] and body["stream"] and body["cache_prompt"]
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_run_at_once_than_asked(concurrency: int) -> None:
    server = EventServer(interval_s=0.002)
    assert len(send(server, 9, concurrency)) == 9
    assert server.most_at_once == concurrency


def test_times_between_tokens_are_the_servers_pace() -> None:
    answers = send(EventServer(interval_s=0.03), 2, 2)
    fields = client.summarise(answers, 6, MEASURED)
    assert 28 < fields["itl_p50"] < 90
    assert 28 < fields["ttft_p50"] < 120
    assert fields["out_tps"] == 5.0 and fields["total_tps"] == 8.0
    assert "ttft_ms" not in fields


def test_answers_of_another_length_are_counted() -> None:
    fields = client.summarise(send(EventServer(missing_tokens=1), 3, 3), 9, MEASURED)
    assert fields["wrong_len"] == 3


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (EventServer(status=404), "HTTP 404 .*no such model"),
        (EventServer(error_after=2), "out of memory"),
        (EventServer(missing_tokens=5), "sent no token"),
    ],
    ids=["refused", "error-event", "empty"],
)
def test_a_bad_answer_is_an_error_that_says_why(server: EventServer, message: str) -> None:
    with pytest.raises(client.BadAnswer, match=message):
        send(server, 1, 1)


def test_repeats_send_other_tokens_so_that_no_cache_helps(capsys: pytest.CaptureFixture[str]) -> None:
    server = EventServer()

    async def go() -> None:
        async with server.listen():
            endpoint = client.Endpoint(server.url)
            await asyncio.to_thread(client.run_workloads, endpoint, "tiny", {"W4": requests(3)}, repeats=2, first_run=4)

    asyncio.run(go())
    prompts = {tuple(body["prompt"]) for body in server.bodies[1:]}
    results = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    assert len(prompts) == 6
    assert [(result["workload"], result["run"], result["n"]) for result in results] == [("W4", 4, 3), ("W4", 5, 3)]


@pytest.mark.parametrize(("name", "expected"), [("W2", 64), ("W4", 16), ("load-2", 2)])
def test_bursts_come_at_once_and_load_at_its_own_concurrency(name: str, expected: int) -> None:
    assert client.concurrency_of(name, 64) == expected
