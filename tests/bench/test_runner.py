"""Our own runner, on a tiny model with a token for each byte."""

import json
import sys
from pathlib import Path

import pytest
import run_llama_cpp
import run_pageport
import runner
from workloads import Request

from pageport.testing.tiny_model import write_tiny_llama

REQUESTS: list[Request] = [{"prompt": list(range(40, 64 + i)), "max_tokens": 4 + i} for i in range(3)]
RATES = {"out_tps", "total_tps", "wall_s", "own_cores", "other_cores", "steal_cores", "peak_rss_mb"}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run_ours(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> "Run":
    return Run(tiny_model, tmp_path, monkeypatch, capfd)


class Run:
    """Runs run_pageport.py in this process and returns its results."""

    def __init__(
        self, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self._model, self._monkeypatch, self._capfd = model, monkeypatch, capfd
        self._workload = folder / "workload.json"
        self._workload.write_text(json.dumps({"W1": REQUESTS[:1], "W2": REQUESTS, "W4": REQUESTS}))

    def __call__(self, *options: str) -> list[dict[str, object]]:
        script = str(Path(run_pageport.__file__))
        small = ["--setting", "num_kv_blocks=64", "--setting", "max_model_len=256", "--setting", "dtype=float32"]
        arguments = [script, str(self._model), "--workload", str(self._workload), *small, *options]
        self._monkeypatch.setattr(sys, "argv", arguments)
        run_pageport.main()
        lines = self._capfd.readouterr().out.splitlines()
        return [json.loads(line.removeprefix("RESULT ")) for line in lines if line.startswith("RESULT ")]


def test_offline_runs_print_one_result_a_run_with_all_rates(run_ours: Run) -> None:
    results = run_ours("--which", "W1,W2", "--repeats", "2", "--first-run", "3")
    assert [(r["workload"], r["run"], r["n"]) for r in results] == [
        ("W1", 3, 1),
        ("W1", 4, 1),
        ("W2", 3, 3),
        ("W2", 4, 3),
    ]
    assert all(result.keys() >= RATES for result in results)


def test_only_a_single_request_has_a_first_token_and_a_decode_rate(run_ours: Run) -> None:
    single, burst = run_ours("--which", "W1,W2")
    assert 0 < float(str(single["ttft_ms"])) < 1e4 and float(str(single["decode_tps"])) > 0
    assert "ttft_ms" not in burst and "decode_tps" not in burst


def test_a_runner_can_be_tried_with_less_work(run_ours: Run) -> None:
    (result,) = run_ours("--which", "W2", "--limit", "2", "--max-tokens", "2")
    assert result["n"] == 2


@pytest.mark.full
def test_our_server_answers_the_same_workload_over_http(run_ours: Run) -> None:
    (result,) = run_ours("--mode", "http", "--which", "W4")
    assert result["wrong_len"] == 0
    assert float(str(result["out_tps"])) > 0


@pytest.mark.full
def test_a_cold_start_is_timed_to_its_first_token_beside_the_memory_of_torch(run_ours: Run) -> None:
    (result,) = run_ours("--mode", "cold")
    assert 0.2 < float(str(result["cold_start_s"])) < 120
    peak, torch_alone = float(str(result["peak_rss_mb"])), float(str(result["import_rss_mb"]))
    assert 50 < torch_alone < peak
    assert result["net_rss_mb"] == pytest.approx(peak - torch_alone, abs=0.2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("dtype=float32", ("dtype", "float32")), ("max_num_seqs=8", ("max_num_seqs", 8)), ("swap=false", ("swap", False))],
)
def test_settings_are_json_where_they_can_be(text: str, expected: tuple[str, object]) -> None:
    assert run_pageport.parse_setting(text) == expected


def test_a_timing_tells_the_rate_of_the_tokens_after_the_first() -> None:
    assert runner.Timing(first_token_s=0.25, decode_s=2.0).fields(101) == {"ttft_ms": 250.0, "decode_tps": 50.0}


def test_the_bench_tools_report_becomes_medians_in_our_units() -> None:
    report = [
        {"n_prompt": 128, "n_gen": 0, "samples_ts": [400.0, 512.0, 640.0]},
        {"n_prompt": 0, "n_gen": 128, "samples_ts": [70.0, 90.0, 80.0]},
    ]
    assert run_llama_cpp.bench_tool_fields(report) == {"ttft_ms": 250.0, "decode_tps": 80.0}
