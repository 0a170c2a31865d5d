"""What the HTTP server adds to an engine's own time, with an engine whose device computes nothing.

    python bench/api_overhead.py [MODEL] [--requests 200] [--streams 64] [--tokens 200]

Starts ``pageport.testing.null_server``: the real server, process border, scheduler and block manager. MODEL, of which
only the tokenizer is used, is a packaged model or a folder. Time to first token is measured at concurrency 1, by a
client that does nothing but wait, over one connection, and the engine's part of it by adding the same requests to the
same engine in this process.
"""

import argparse
import asyncio
import http.client
import json
import statistics
import sys
import time

from meter import Meter, all_descendants, emit
from server_process import free_port, serving

from pageport.engine.messages import EngineRequest
from pageport.load.completion_stream import carries_token
from pageport.load.dataset import LoadPrompt
from pageport.load.load_run import LoadResult, run_load
from pageport.load.target import Target
from pageport.models.resolve import resolve_model
from pageport.sampling.params import SamplingParams
from pageport.testing.null_engine import build_null_engine, null_config
from pageport.text.tokenizer import load_tokenizer

PROMPT = "The quick brown fox jumps over the lazy dog."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    arguments = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "pageport.testing.null_server", arguments.model, "--port", str(port)]
    own_ms = engine_first_token_ms(arguments.model, arguments.requests)
    with serving(command, port) as server:
        processes = sorted(all_descendants(server.pid))
        for path, is_chat in (("completions", False), ("chat", True)):
            target = Target(url=server.url, model=arguments.model, is_chat=is_chat)
            first_token_ms(target, 20)
            first_ms = first_token_ms(target, arguments.requests)
            with Meter(processes) as meter:
                result = ask(target, arguments.streams, arguments.streams, tokens=arguments.tokens)
            num_tokens = sum(answer.tokens for answer in result.answers)
            fields = {
                "ttft_p50": round(statistics.median(first_ms), 3),
                "engine_ttft_p50": round(own_ms, 3),
                "added_ms": round(statistics.median(first_ms) - own_ms, 3),
                "streams": arguments.streams,
                "out_tps": round(num_tokens / result.duration_s),
            }
            emit("pageport", path, 0, **fields, **meter.measured.fields())


def engine_first_token_ms(model: str, count: int) -> float:
    """Return the median of what the engine alone takes from a request to its first token."""
    tokenizer = load_tokenizer(resolve_model(model))
    config = null_config(model, token_id=tokenizer.encode(" word", add_special_tokens=False)[0])
    engine = build_null_engine(config, lambda done, total: None).engine
    token_ids = tokenizer.encode(PROMPT)
    times_ms = []
    for number in range(count):
        sampling = SamplingParams(temperature=0, max_tokens=1)
        request = EngineRequest(
            request_id=str(number), prompt_token_ids=token_ids, sampling=sampling, max_tokens=1, seed=0
        )
        start = time.perf_counter()
        engine.add(request)
        assert engine.step().outputs, "one step gives the first token"
        times_ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times_ms)


def first_token_ms(target: Target, count: int) -> list[float]:
    """Send equal requests one after the other; return the time to the first token of each."""
    body = json.dumps(target.body(LoadPrompt(prompt=PROMPT, max_tokens=1)))
    connection = http.client.HTTPConnection(target.url.removeprefix("http://"))
    times_ms = []
    for _ in range(count):
        start = time.perf_counter()
        connection.request("POST", target.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        while not any(map(carries_token, json.loads(next_event(response))["choices"])):
            pass
        times_ms.append((time.perf_counter() - start) * 1e3)
        response.read()
    connection.close()
    return times_ms


def next_event(response: http.client.HTTPResponse) -> bytes:
    """Return the data of the next event."""
    for line in response:
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ")
    raise SystemExit(f"The answer ended without a token, with status {response.status}.")


def ask(target: Target, count: int, concurrency: int, *, tokens: int) -> LoadResult:
    """Send equal requests; every one must be answered with so many tokens."""
    prompts = [LoadPrompt(prompt=PROMPT, max_tokens=tokens)] * count
    result = asyncio.run(run_load(target, prompts, [0.0] * count, concurrency=concurrency))
    wrong = [answer.tokens for answer in result.answers if answer.tokens != tokens]
    if result.errors or wrong:
        raise SystemExit(f"{dict(result.errors)} {result.first_messages}; {len(wrong)} answers of another length")
    return result


if __name__ == "__main__":
    main()
