"""llama.cpp: its own bench tool, its own server, or the same server as the ``xllamacpp`` wheel packages it.

    python bench/run_llama_cpp.py FILE.gguf [--mode offline|http|cold] [--build FOLDER | --wheel-python PYTHON]

``offline`` runs ``llama-bench``: W1 as a prompt of 128 tokens and 128 generated ones, ``context-N`` as tokens generated
behind N others. It knows no bursts: W2 to W4 need the server. This script itself uses the standard library only.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
from pathlib import Path
from typing import Any

from meter import Meter, emit
from runner import Server, run, runner_parser

PEERS = Path(os.environ.get("PAGEPORT_PEERS", "~/.cache/pageport-bench/peers")).expanduser()
CONTEXT_NUM_TOKENS = 32


class BenchToolFailed(Exception):
    """llama-bench ended with an error."""


def main() -> None:
    parser = runner_parser(__doc__, engine="llama.cpp", modes=("offline", "http", "cold"))
    parser.add_argument("--build", type=Path, default=PEERS / "llama.cpp" / "build" / "bin")
    parser.add_argument("--wheel-python", help="the interpreter that has xllamacpp: use its server instead")
    parser.add_argument("--parallel", type=int, default=32, help="slots of the server")
    parser.add_argument("--context", type=int, default=32768, help="tokens of KV cache, shared by the slots")
    parser.add_argument("--micro-batch", type=int, default=512, help="tokens of one step")
    parser.add_argument("--flash-attention", choices=("on", "off", "auto"), default="on")
    parser.add_argument("--tries", type=int, default=3, help="of the bench tool in one run; the median counts")
    arguments = parser.parse_args()
    if arguments.mode == "offline":
        for run_number in range(arguments.first_run, arguments.first_run + arguments.repeats):
            for name in arguments.which.split(","):
                _run_bench_tool(arguments, name, run_number)
    else:
        run(arguments, None, lambda port: _server(arguments, port))


def _run_bench_tool(arguments: argparse.Namespace, name: str, run_number: int) -> None:
    family, _, depth = name.partition("-")
    if family == "context":
        sizes = ["-p", "0", "-n", str(CONTEXT_NUM_TOKENS), "-d", depth]
    elif name == "W1":
        sizes = ["-p", "128", "-n", "128"]
    else:
        raise SystemExit(f"llama-bench cannot run {name}. Use --mode http.")
    command = [str(arguments.build / "llama-bench"), "-m", arguments.model, "-t", str(arguments.threads), *sizes]
    command += ["-r", str(arguments.tries), "-o", "json"]
    command += [] if arguments.flash_attention == "auto" else ["-fa", "1" if arguments.flash_attention == "on" else "0"]
    with Meter() as meter:
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchToolFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-600:]}")
    # The tool has ended: its memory is among that of the children waited for.
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    fields = {**meter.measured.fields(), "peak_rss_mb": round(peak_mb)}
    emit(arguments.engine, name, run_number, **bench_tool_fields(json.loads(done.stdout)), **fields)


def bench_tool_fields(tests: list[dict[str, Any]]) -> dict[str, float]:
    """Return first-token and decode figures from llama-bench's report; medians of its tries."""
    fields: dict[str, float] = {}
    for test in tests:
        rate = statistics.median(test["samples_ts"])
        if test["n_gen"]:
            fields["decode_tps"] = round(rate, 1)
        else:
            fields["ttft_ms"] = round(test["n_prompt"] / rate * 1e3, 1)
    return fields


def _server(arguments: argparse.Namespace, port: int) -> Server:
    limits = ["--parallel", str(arguments.parallel), "--threads", str(arguments.threads)]
    if arguments.wheel_python:
        script = Path(__file__).with_name("serve_xllamacpp.py")
        command = [arguments.wheel_python, str(script), arguments.model, "--port", str(port), *limits]
        command += ["--context", str(arguments.context), "--micro-batch", str(arguments.micro_batch)]
        command += ["--flash-attention", arguments.flash_attention]
    else:
        command = [str(arguments.build / "llama-server"), "-m", arguments.model, "--host", "127.0.0.1"]
        command += ["--port", str(port), *limits, "--ctx-size", str(arguments.context), "--kv-unified"]
        command += ["--batch-size", "2048", "--ubatch-size", str(arguments.micro_batch), "--cache-ram", "0"]
        command += ["--flash-attn", arguments.flash_attention, "--no-webui"]
    return Server(command, port)


if __name__ == "__main__":
    main()
