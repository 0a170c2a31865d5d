"""Run pageport and every peer that is installed, in turn, on the same machine; print the ratios with the roofline.

    python bench/compare.py [--which W1,W2,W3,W4,cold] [--engines pageport,llama.cpp] [--repeats 3] [--quick]
                            [--out results.json] [--plots FOLDER]
    python bench/compare.py --report results.json [--plots FOLDER]

``--which`` also knows ``load`` (throughput and latency against concurrency) and ``context`` (decode against context).
Every engine runs in its own process and environment (``bench/peers.sh`` makes them). A round puts every engine to every
workload once, so that a slow minute of the machine falls on all of them; a run that lost more than a tenth of a core
to others is repeated, at most twice.
"""

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from decode_limit import decode_limit
from engines import GGUF, OURS, PEERS, Engine, Job, expand, find_engines
from meter import RESULT_PREFIX
from roofline import (
    KINDS,
    Kind,
    NoCompiler,
    Peak,
    compiler_flags,
    cpu_features,
    cpu_model,
    default_thread_counts,
    measure_peaks,
)
from table import Metric, Result, best_peer_table, comparison_table, engines_of, is_disturbed

QUICK_LIMIT = 8
QUICK_MAX_TOKENS = 16
MAX_REPETITIONS = 2  # of a disturbed run
W1_DECODE = Metric("W1", "decode_tps", "", more_is_better=True)


class JobFailed(Exception):
    """A runner ended with an error, or took too long."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--which", default="W1,W2,W3,W4,cold")
    parser.add_argument("--engines", help="comma-separated names or peers; default: all that are installed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few short requests: to see that everything runs")
    parser.add_argument("--out", type=Path, default=Path("comparison.json"))
    parser.add_argument("--plots", type=Path, help="folder for PNG files; needs matplotlib")
    parser.add_argument("--report", type=Path, help="print the tables of an earlier run, and run nothing")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one process")
    parser.add_argument("--kv-bytes", type=int, default=4, help="of one value of pageport's cache, for the roofline")
    arguments = parser.parse_args()
    # An end from outside must also end the runner that is at work.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("compare.py was told to stop."))
    report = json.loads(arguments.report.read_text()) if arguments.report else compare(arguments)
    print(summary(report, arguments.kv_bytes))
    if arguments.plots:
        from plots import write_plots

        for path in write_plots(report["results"], arguments.plots):
            print(path)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run everything; the report is written after each round."""
    workloads = expand(arguments.which.split(","))
    engines = _installed(find_engines(arguments.engines.split(",") if arguments.engines else None))
    extra = ["--limit", str(QUICK_LIMIT), "--max-tokens", str(QUICK_MAX_TOKENS)] if arguments.quick else []
    report: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": compiler_flags(cpu_features()),
        "versions": _versions(engines),
        "quick": arguments.quick,
        "peaks": _peaks(),
        "reads": [],
        "results": [],
        "failures": [],
    }
    for run in range(arguments.repeats):
        if "W1" in workloads:
            report["reads"] += _read_bandwidth()
        for engine in engines:
            for job in engine.jobs(workloads):
                _say(f"round {run + 1}: {engine.name} {job.mode} {','.join(job.workloads)}")
                try:
                    report["results"] += run_until_undisturbed(
                        engine,
                        job,
                        run,
                        extra=extra,
                        timeout_s=arguments.timeout,
                        max_repetitions=0 if arguments.quick else MAX_REPETITIONS,
                    )
                except JobFailed as failure:
                    _say(f"failed: {failure}")
                    report["failures"].append({"engine": engine.name, "job": asdict(job), "why": str(failure)})
        _write(arguments.out, report)
    report["peaks"] = _best_peaks([*report["peaks"], *_peaks()])
    _write(arguments.out, report)
    return report


def run_until_undisturbed(
    engine: Engine, job: Job, run: int, *, extra: Sequence[str], timeout_s: float, max_repetitions: int
) -> list[dict[str, Any]]:
    """Run one job; repeat the workloads that others disturbed, and keep the calmest result of each.

    Raises:
        JobFailed: the runner failed.
    """
    calmest: dict[str, dict[str, Any]] = {}
    pending = list(job.workloads)
    for _ in range(1 + max_repetitions):
        results = run_job(engine.command(Job(job.mode, pending), run, _extra(job, extra)), timeout_s)
        for result in results:
            known = calmest.get(result["workload"])
            if known is None or disturbance(result) < disturbance(known):
                calmest[result["workload"]] = result
        pending = [name for name in pending if is_disturbed(calmest[name])]
        if not pending:
            break
        _say(f"disturbed: {','.join(pending)}")
    return list(calmest.values())


def run_job(command: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    """Run one runner and return its results.

    Raises:
        JobFailed: it ended with an error, printed no result, answered with wrong lengths, or took too long.
    """
    with tempfile.TemporaryFile("w+") as errors:
        # A session of its own, so that what a runner started ends with it.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"{Path(command[1]).name} took longer than {timeout_s:.0f} s.") from None
        finally:
            _end_session(process)
        results = parse_results(output)
        if process.returncode or not results:
            errors.seek(0)
            raise JobFailed(f"{Path(command[1]).name} ended with {process.returncode}: {errors.read()[-800:]}")
    if any(result.get("wrong_len") for result in results):
        raise JobFailed(f"{Path(command[1]).name} got answers of another length than asked for: {results}")
    return results


def parse_results(output: str) -> list[dict[str, Any]]:
    """Return the results among a runner's output."""
    lines = [line for line in output.splitlines() if line.startswith(RESULT_PREFIX)]
    return [json.loads(line.removeprefix(RESULT_PREFIX)) for line in lines]


def disturbance(result: Result) -> float:
    return float(result["other_cores"]) + float(result["steal_cores"])


def summary(report: dict[str, Any], kv_bytes: int) -> str:
    """Return the tables, the roofline, and what did not run, as Markdown."""
    results = report["results"]
    parts = [f"{report['date']}, {report['cores']} cores of {report['cpu']}, {' '.join(report['flags'])}"]
    if report["quick"]:
        parts.append("A quick run: a few short requests. These are no figures.")
    parts.append("\n".join(f"* {Peak(**peak)}" for peak in report["peaks"]))
    parts += [f"* {engine}: {versions}" for engine, versions in report["versions"].items()]
    ours = [engine for engine in engines_of(results) if engine.startswith(OURS)]
    for engine in ours:
        parts += [f"In brackets: how many times better {engine} is.", comparison_table(results, engine)]
        best = best_peer_table(results, engine, OURS)
        parts += [best] if best.count("\n") > 1 else []
    reads = report.get("reads") or [peak["value"] for peak in report["peaks"] if peak["kind"] == "read"][-1:]
    decode = W1_DECODE.median(results, ours[0]) if ours else None
    if reads and decode and GGUF.exists():
        # What memory gives depends on the host's other machines: it is measured in turns with what it is the limit of.
        limit = decode_limit(GGUF, median(reads), kv_bytes=kv_bytes)
        share = decode / limit.tokens_per_second
        parts.append(
            f"W1 decode of {ours[0]} is {share:.0%} of the bandwidth limit: {limit.tokens_per_second:.0f} tokens/s "
            f"at {limit.bytes_per_token / 1e6:.1f} MB a token and {median(reads):.1f} GB/s, the median of "
            f"{', '.join(f'{read:.1f}' for read in reads)}."
        )
    parts += [f"Failed: {failure['engine']}: {failure['why']}" for failure in report["failures"]]
    return "\n\n".join(parts)


def _installed(engines: Sequence[Engine]) -> list[Engine]:
    for engine in engines:
        if engine.missing:
            _say(f"left out: {engine.name}; make it with: {engine.missing}")
    return [engine for engine in engines if not engine.missing]


def _extra(job: Job, extra: Sequence[str]) -> Sequence[str]:
    return [] if job.mode == "cold" else extra


def _versions(engines: Sequence[Engine]) -> dict[str, str]:
    files = {engine.peer: PEERS / engine.peer / "versions.txt" for engine in engines}
    return {peer: " ".join(path.read_text().split()) for peer, path in files.items() if path.exists()}


def _peaks(kinds: Sequence[Kind] = KINDS) -> list[dict[str, Any]]:
    try:
        return [asdict(peak) for peak in measure_peaks(default_thread_counts(), kinds=kinds)]
    except NoCompiler as error:
        _say(str(error))
        return []


def _read_bandwidth() -> list[float]:
    """Return the best of all read loops at this moment, in GB/s; nothing without a compiler."""
    values = [peak["value"] for peak in _peaks(("read",))]
    return [max(values)] if values else []


def _best_peaks(peaks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for peak in peaks:
        key = peak["kind"], peak["threads"]
        if key not in best or peak["value"] > best[key]["value"]:
            best[key] = peak
    return list(best.values())


def _end_session(process: "subprocess.Popen[str]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _write(path: Path, report: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(report, indent=1))
    partial.rename(path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
