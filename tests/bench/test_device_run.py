"""The device run: a failing part hides no other, and all of it runs small on the CPU."""

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "bench" / "device"
PARTS = ("check_models", "time_attention", "time_llama", "time_mixed_run", "check_conformance")


@pytest.fixture
def report() -> ModuleType:
    spec = spec_from_file_location("device_report", FOLDER / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_report_has_what_each_part_wrote_before_it_failed(report, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OUT", str(tmp_path))
    (tmp_path / "time_llama.json").write_text(json.dumps({"decode, batch 1": {"tokens/s": 9.5, "failures": []}}))
    (tmp_path / "time_llama.exit.json").write_text(json.dumps({"exit status": 124}))
    report.main()
    written = json.loads((tmp_path / "device.json").read_text())
    assert written["time_llama"] == {"decode, batch 1": {"tokens/s": 9.5, "failures": []}, "exit status": 124}
    assert written["check_models"] == "nothing was written"
    table = capsys.readouterr().out.splitlines()
    assert "| time_llama | decode, batch 1 | tokens/s 9.5 |" in table
    assert "| check_models |  | nothing was written |" in table


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_part_runs_small_on_the_cpu(tmp_path):
    (tmp_path / "no wheels").mkdir()
    environment = {
        **os.environ,
        "OUT": str(tmp_path),
        "PYTHON": sys.executable,
        "WHEELS": str(tmp_path / "no wheels"),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(["bash", str(FOLDER / "run.sh"), "--dry"], env=environment, check=True)
    written = json.loads((tmp_path / "device.json").read_text())
    for part in PARTS:
        assert written[part]["took"]["wall s"] > 0
        assert not {"failed", "exit status"} & set(written[part]), written[part]
    assert all(
        result["equal"] == result["requests"] for name, result in written["check_models"].items() if name != "took"
    )
    levels = [result for name, result in written["check_conformance"].items() if name.startswith("level")]
    assert len(levels) == 7
    assert all(level["failures"] == [] for level in levels)
