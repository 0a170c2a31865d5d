"""A load run against a small server: what is measured, and what becomes of failures."""

import asyncio
import socket
from typing import Any

import pytest

from pageport.load.arrivals import arrival_times
from pageport.load.completion_stream import carries_token
from pageport.load.dataset import LoadPrompt
from pageport.load.goodput import parse_objectives
from pageport.load.load_run import LoadResult, run_load
from pageport.load.summary import summarise
from pageport.load.target import Target

from ..bench.event_server import EventServer


def run(server: EventServer, count: int = 3, **options: Any) -> LoadResult:
    prompts = [LoadPrompt(prompt=[1, 2, 3], max_tokens=5)] * count

    async def go() -> LoadResult:
        async with server.listen():
            due = options.pop("due", [0.0] * count)
            return await run_load(Target(url=server.url, model="m", exact_length=True), prompts, due, **options)

    return asyncio.run(go())


def test_tokens_are_those_that_the_server_counts() -> None:
    summary = summarise(run(EventServer(interval_s=0.002)))
    assert (summary["completed"], summary["failed"]) == (3, 0)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (9, 15)
    assert summary["output_throughput"] * summary["duration_s"] == pytest.approx(15)
    assert summary["answers_of_another_length"] == summary["answers_without_usage"] == 0


def test_latencies_are_the_servers_pace() -> None:
    summary = summarise(run(EventServer(interval_s=0.03), count=1))
    assert 30 < summary["median_ttft_ms"] < 150
    assert 30 < summary["median_tpot_ms"] < 90
    assert 28 < summary["p99_itl_ms"] < 150
    assert summary["mean_e2el_ms"] >= summary["mean_ttft_ms"] + 4 * 29


@pytest.mark.parametrize(
    ("server", "options", "kind", "message"),
    [
        (EventServer(status=503), {}, "HTTP 503", "no such model"),
        (EventServer(error_after=2), {}, "error event", "out of memory"),
        (EventServer(missing_tokens=5), {}, "no token", "sent no token"),
        (EventServer(interval_s=5.0), {"timeout_s": 0.05}, "timeout", "within 0.05 s"),
    ],
    ids=["refused", "error-event", "empty", "late"],
)
def test_failures_are_counted_by_kind_with_the_first_message(
    server: EventServer, options: dict[str, Any], kind: str, message: str
) -> None:
    result = run(server, **options)
    assert result.errors == {kind: 3}
    assert message in result.first_messages[kind]
    assert summarise(result, parse_objectives(["ttft:1000"]))["good_share"] == 0


def test_a_server_that_is_not_there_is_a_failure_of_each_request() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    prompts = [LoadPrompt(prompt="a", max_tokens=1)] * 2
    result = asyncio.run(run_load(Target(url=url, model="m"), prompts, [0.0, 0.0]))
    assert result.errors == {"connection": 2}


def test_no_more_run_at_once_than_asked_and_the_wait_for_a_place_is_told() -> None:
    server = EventServer(interval_s=0.01)
    result = run(server, count=6, concurrency=2)
    assert server.most_at_once == result.most_at_once == 2
    assert summarise(result)["mean_client_wait_ms"] > 20


def test_requests_are_sent_when_they_are_due() -> None:
    result = run(EventServer(), count=20, due=arrival_times(20, 100.0, 1.0, seed=1))
    sent = sorted(answer.sent_at for answer in result.answers)
    assert sent[-1] - sent[0] == pytest.approx(arrival_times(20, 100.0, 1.0, seed=1)[-1], abs=0.15)


@pytest.mark.parametrize(("objective", "share"), [("ttft:10000 tpot:10000", 1.0), ("itl:0.001", 0.0), ("e2el:1", 0.0)])
def test_goodput_counts_the_requests_that_keep_to_every_bound(objective: str, share: float) -> None:
    summary = summarise(run(EventServer(interval_s=0.003)), parse_objectives([objective]))
    assert summary["good_share"] == share
    assert summary["request_goodput"] == pytest.approx(share * 3 / summary["duration_s"])


def test_chunks_that_carry_no_token_are_no_tokens_of_a_chat() -> None:
    carried = [{"role": "assistant", "content": ""}, {"content": "a"}, {"tool_calls": [{}]}, {}, {"reasoning": "b"}]
    assert [carries_token({"delta": delta, "finish_reason": None}) for delta in carried] == [
        False, True, True, False, True
    ]  # fmt: skip
