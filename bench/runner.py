"""What the runners of all engines share: their arguments, and the ways to measure an engine.

``offline`` generates in the runner's process, ``http`` starts the engine's server and streams from it, ``cold`` times a
fresh process to its first token. Each prints ``RESULT {json}`` lines.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from client import Endpoint, complete, run_workloads
from cold_start import COLD_PROMPT, announce_first_token, measure_cold_start
from meter import Meter, all_descendants, emit, memory_mb, throughput
from server_process import free_port, serving
from workloads import Request, num_output_tokens, num_prompt_tokens, read_workload, shift, shorten

MODES = ("offline", "http", "cold", "first-token")


@dataclass(frozen=True)
class Timing:
    """When one request's tokens came: from its start to the first, and from the first to the last."""

    first_token_s: float
    decode_s: float

    def fields(self, num_tokens: int) -> dict[str, float]:
        decode = {"decode_tps": round((num_tokens - 1) / self.decode_s, 1)} if num_tokens > 1 else {}
        return {"ttft_ms": round(self.first_token_s * 1e3, 1), **decode}


# Runs requests to their exact lengths; tells the timing when there is only one and the engine shows it.
Generate = Callable[[Sequence[Request]], Timing | None]


@dataclass(frozen=True)
class Server:
    """How to start an engine's server on a port, and how to talk to it."""

    command: Sequence[str]
    port: int
    model: str = "model"
    probe: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


def runner_parser(description: str | None, *, engine: str, modes: Sequence[str] = MODES) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every runner takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the model, in a format that the engine reads")
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--engine", default=engine, help="the name in the results")
    parser.add_argument("--workload", type=Path, help="a file of workloads.py; default: the same, made here")
    parser.add_argument("--which", default="W1", help="comma-separated: W1 … W4, load-N, context-N")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--first-run", type=int, default=0, help="the number of the first run in the results")
    parser.add_argument("--limit", type=int, help="only the first so many requests of each workload")
    parser.add_argument("--max-tokens", type=int, help="at most so many output tokens for each request")
    parser.add_argument("--threads", type=int, default=2)
    return parser


def run(
    arguments: argparse.Namespace,
    open_engine: Callable[[], AbstractContextManager[Generate]] | None,
    make_server: Callable[[int], Server] | None = None,
    *,
    baseline_import: str | None = "torch",
) -> None:
    """Measure as ``arguments.mode`` says.

    Args:
        open_engine: load the model in this process; None for an engine that only has a server.
        make_server: describe the server for a port; None for an engine without one.
        baseline_import: the module whose import alone is the baseline of a cold start's memory.
    """
    if arguments.mode == "http" and make_server:
        _run_http(arguments, make_server(free_port()))
    elif arguments.mode == "cold" and open_engine:
        command = [sys.executable, *_own_arguments("first-token")]
        for run_number in _run_numbers(arguments):
            measure_cold_start(arguments.engine, command, run_number, imports=baseline_import)
    elif arguments.mode == "cold" and make_server:
        for run_number in _run_numbers(arguments):
            _run_cold_server(arguments.engine, make_server(free_port()), run_number)
    elif open_engine:
        with open_engine() as generate:
            if arguments.mode == "first-token":
                generate([{"prompt": COLD_PROMPT, "max_tokens": 1}])
                announce_first_token()
            else:
                _run_offline(arguments, generate)


def _run_offline(arguments: argparse.Namespace, generate: Generate) -> None:
    generate([{"prompt": COLD_PROMPT, "max_tokens": 2}])
    step = 0
    for name in arguments.which.split(","):
        requests = _requests(arguments, name)
        num_tokens = num_output_tokens(requests)
        for run_number in _run_numbers(arguments):
            step += 1
            shifted = shift(requests, step)
            with Meter() as meter:
                timing = generate(shifted)
            single = timing.fields(num_tokens) if timing else {}
            rates = throughput(num_prompt_tokens(requests), num_tokens, meter.measured.wall_s)
            fields = {"n": len(requests), **rates, **single, **meter.measured.fields()}
            emit(arguments.engine, name, run_number, **fields)


def _run_http(arguments: argparse.Namespace, server: Server) -> None:
    workloads = {name: _requests(arguments, name) for name in arguments.which.split(",")}
    with serving(server.command, server.port, probe=server.probe, environment=server.environment) as running:
        endpoint = Endpoint(running.url, server.model, extra=server.extra)
        runs = {"repeats": arguments.repeats, "first_run": arguments.first_run}
        run_workloads(endpoint, arguments.engine, workloads, **runs)


def _run_cold_server(engine: str, server: Server, run_number: int) -> None:
    with (
        Meter() as meter,
        serving(server.command, server.port, probe=server.probe, environment=server.environment) as running,
    ):
        endpoint = Endpoint(running.url, server.model, extra=server.extra)
        answer = asyncio.run(complete(endpoint, {"prompt": COLD_PROMPT, "max_tokens": 1}))
        seconds = answer.chunk_times[0] - running.started_at
        peak_mb = memory_mb(all_descendants(running.pid), "VmHWM")
    fields = {**meter.measured.fields(), "peak_rss_mb": round(peak_mb, 1), "net_rss_mb": round(peak_mb, 1)}
    emit(engine, "cold", run_number, cold_start_s=round(seconds, 2), **fields)


def _requests(arguments: argparse.Namespace, name: str) -> list[Request]:
    return shorten(read_workload(arguments.workload, name), arguments.limit, arguments.max_tokens)


def _run_numbers(arguments: argparse.Namespace) -> range:
    return range(arguments.first_run, arguments.first_run + arguments.repeats)


def _own_arguments(mode: str) -> list[str]:
    """Return this process's arguments with another mode; of an option given twice the last counts."""
    return [*sys.argv, "--mode", mode]


class TokenClock:
    """Notes when the tokens of one request come."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._times: list[float] = []

    def tick(self) -> None:
        self._times.append(time.perf_counter())

    def timing(self) -> Timing:
        return Timing(self._times[0] - self._start, self._times[-1] - self._times[0])
