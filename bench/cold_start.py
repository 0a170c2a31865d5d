"""From process start to first token, and the memory that it takes beyond importing torch."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from meter import Meter, all_descendants, emit, memory_mb

FIRST_TOKEN_PREFIX = "FIRST_TOKEN "
# Enough for a first step; the prompt is not what is measured.
COLD_PROMPT = list(range(20, 36))


class ColdStartFailed(Exception):
    """The process ended without a first token."""


def announce_first_token(**fields: Any) -> None:
    """Say, in the measured process, that the first token is there; ``fields`` go into the result."""
    peak_mb = memory_mb(all_descendants(os.getpid()), "VmHWM")
    print(FIRST_TOKEN_PREFIX + json.dumps({"peak_rss_mb": round(peak_mb, 1), **fields}), flush=True)


def measure_cold_start(engine: str, command: Sequence[str], run: int, *, imports: str | None = "torch") -> None:
    """Start ``command``, wait for its first token, and print one result.

    Args:
        imports: the module whose import alone is the memory's baseline; none: no baseline.

    Raises:
        ColdStartFailed: the process ended before.
    """
    with Meter() as meter:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        seconds, announced = _wait_for_first_token(process, start)
    baseline_mb = _import_memory_mb(imports) if imports else 0.0
    peak_mb = float(announced.pop("peak_rss_mb"))
    fields = {**announced, "cold_start_s": round(seconds, 2), **meter.measured.fields(), "peak_rss_mb": peak_mb}
    emit(engine, "cold", run, **fields, import_rss_mb=baseline_mb, net_rss_mb=round(peak_mb - baseline_mb, 1))


def _wait_for_first_token(process: "subprocess.Popen[str]", start: float) -> tuple[float, dict[str, Any]]:
    assert process.stdout is not None
    found: tuple[float, dict[str, Any]] | None = None
    with process.stdout:
        for line in process.stdout:
            if line.startswith(FIRST_TOKEN_PREFIX) and found is None:
                found = time.perf_counter() - start, json.loads(line.removeprefix(FIRST_TOKEN_PREFIX))
    process.wait()
    if found is None:
        raise ColdStartFailed(f"{process.args!r} ended with {process.returncode} and without a first token.")
    return found


def _import_memory_mb(module: str) -> float:
    code = (
        f"import {module}\n"
        "for line in open('/proc/self/status'):\n"
        "    if line.startswith('VmHWM:'): print(int(line.split()[1]) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return round(float(done.stdout), 1)
