"""A streaming client for any server with OpenAI's ``/v1/completions``: token-id prompts, exact output lengths.

    python bench/client.py --url http://127.0.0.1:8000 --model NAME [--which W1,W2,W3,W4] [--repeats 2]
                           [--engine NAME] [--pid SERVER_PID] [--extra JSON]

W1 to W3 are sent all at once, W4 at concurrency 16; ``load-N`` are equal requests at concurrency N. Only the standard
library and ``pageport.load``, which needs no more, are used, so that it runs in any engine's environment.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 - makes pageport importable
from meter import Measurement, Meter, emit, throughput
from workloads import Request, num_prompt_tokens, read_workload, shift, shorten

from pageport.load.answer import Answer, BadAnswer
from pageport.load.completion_stream import read_stream
from pageport.load.percentile import percentile

__all__ = ["Answer", "BadAnswer", "Endpoint", "complete", "run_workloads", "send_all", "summarise"]

W4_CONCURRENCY = 16


@dataclass(frozen=True)
class Endpoint:
    """Where to send completions, and what to add to each request's body."""

    url: str
    model: str = "model"
    path: str = "/v1/completions"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, request: Request) -> bytes:
        fields = {
            "model": self.model,
            "prompt": request["prompt"],
            "max_tokens": request["max_tokens"],
            "min_tokens": request["max_tokens"],
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        return json.dumps(fields).encode()


async def complete(endpoint: Endpoint, request: Request) -> Answer:
    """Send one request and read its whole stream.

    Raises:
        BadAnswer: an HTTP error, an error event, or no token at all.
    """
    return await read_stream(endpoint.url + endpoint.path, endpoint.body(request), wanted_tokens=request["max_tokens"])


async def send_all(endpoint: Endpoint, requests: Sequence[Request], concurrency: int) -> list[Answer]:
    """Send the requests in order, at most ``concurrency`` at once."""
    free = asyncio.Semaphore(concurrency)

    async def send(request: Request) -> Answer:
        async with free:
            return await complete(endpoint, request)

    return list(await asyncio.gather(*(send(request) for request in requests)))


def summarise(answers: Sequence[Answer], prompt_tokens: int, measured: Measurement) -> dict[str, float]:
    """Return a result's fields: rates, percentiles in milliseconds, and how many answers had another length."""
    first = [answer.first_token_ms for answer in answers]
    between = [gap for answer in answers for gap in answer.between_chunks_ms]
    per_token = percentile([answer.ms_per_token for answer in answers], 0.5)
    output_tokens = sum(answer.tokens for answer in answers)
    single = {"ttft_ms": round(first[0], 1)} if len(answers) == 1 else {}
    return {
        "n": len(answers),
        **throughput(prompt_tokens, output_tokens, measured.wall_s),
        **single,
        "ttft_p50": round(percentile(first, 0.5), 1),
        "ttft_p99": round(percentile(first, 0.99), 1),
        "itl_p50": round(percentile(between, 0.5), 1),
        "itl_p99": round(percentile(between, 0.99), 1),
        "tpot_p50": round(per_token, 2),
        "decode_tps": round(1e3 / per_token, 1) if per_token > 0 else float("nan"),
        "wrong_len": sum(answer.tokens != answer.wanted_tokens for answer in answers),
        "chunks": sum(len(answer.chunk_times) for answer in answers),
        **measured.fields(),
    }


def run_workloads(
    endpoint: Endpoint,
    engine: str,
    workloads: Mapping[str, Sequence[Request]],
    *,
    repeats: int = 1,
    first_run: int = 0,
    server_pids: Sequence[int] = (),
) -> None:
    """Warm the server up, send each workload ``repeats`` times, and print one result each."""
    asyncio.run(complete(endpoint, {"prompt": list(range(30, 46)), "max_tokens": 4}))
    step = 0
    for name, requests in workloads.items():
        for run in range(first_run, first_run + repeats):
            step += 1
            shifted = shift(requests, step)
            with Meter(server_pids) as meter:
                answers = asyncio.run(send_all(endpoint, shifted, concurrency_of(name, len(shifted))))
            emit(engine, name, run, **summarise(answers, num_prompt_tokens(shifted), meter.measured))


def concurrency_of(workload: str, num_requests: int) -> int:
    """Return how many requests of a workload are sent at once."""
    if workload.startswith("load-"):
        return int(workload.removeprefix("load-"))
    return W4_CONCURRENCY if workload == "W4" else num_requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--path", default="/v1/completions")
    parser.add_argument("--workload", type=Path, help="a file of workloads.py; default: the same, made here")
    parser.add_argument("--which", default="W1,W2,W3,W4")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only the first so many requests of each workload")
    parser.add_argument("--engine", default="server", help="the name in the results")
    parser.add_argument("--pid", type=int, action="append", default=[], help="a server process whose cores are ours")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON merged into each request's body")
    arguments = parser.parse_args()
    endpoint = Endpoint(arguments.url, arguments.model, arguments.path, arguments.extra)
    workloads = {
        name: shorten(read_workload(arguments.workload, name), arguments.limit, None)
        for name in arguments.which.split(",")
    }
    run_workloads(endpoint, arguments.engine, workloads, repeats=arguments.repeats, server_pids=arguments.pid)


if __name__ == "__main__":
    main()
