"""Loading a sharded checkpoint peaks at 1.1 times its size: resident memory, mapped file pages included."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

_ROWS, _COLUMNS = 1024, 2048
_MATRIX_BYTES = 2 * _ROWS * _COLUMNS

_LOAD = """
import json, sys
from pathlib import Path
import torch
from pageport.backend.reference.weights import prepare_weight
from pageport.backend.weights import WeightSpec
from pageport.models.loaders import open_checkpoint
from pageport.models.spec import MatrixPart

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

checkpoint = open_checkpoint(Path(sys.argv[1]))
rows, columns = map(int, sys.argv[2:])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
before = status("VmRSS")
weights = []
for name in sorted(checkpoint.names()):
    spec = WeightSpec(name=name, out_features=rows, in_features=columns, compute_dtype="bfloat16")
    part = checkpoint.matrix(MatrixPart(name=name, rows=rows), columns)
    weights.append(prepare_weight(spec, [part], torch.device("cpu")))
checksum = float(sum(weight.dense[0, 0].float() for weight in weights))
print(json.dumps({"before": before, "peak": status("VmHWM"), "checksum": checksum}))
"""


def _write_shards(folder, num_shards, matrices_a_shard):
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        tensors = {f"w.{shard}.{i}": torch.ones(_ROWS, _COLUMNS, dtype=torch.bfloat16) for i in range(matrices_a_shard)}
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    return len(weight_map)


def _load_elsewhere(folder):
    command = [sys.executable, "-c", _LOAD, str(folder), str(_ROWS), str(_COLUMNS)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_loading_200_mb_takes_a_tenth_more_at_its_peak(tmp_path):
    num_matrices = _write_shards(tmp_path, num_shards=4, matrices_a_shard=12)
    loaded = _load_elsewhere(tmp_path)
    assert loaded["checksum"] == num_matrices == 48
    # The interpreter and torch are as large as this checkpoint, so they are left out.
    assert loaded["peak"] - loaded["before"] <= 1.1 * num_matrices * _MATRIX_BYTES


@pytest.mark.full
def test_loading_4_gb_takes_a_tenth_more_at_its_peak(tmp_path):
    num_matrices = _write_shards(tmp_path, num_shards=8, matrices_a_shard=128)
    loaded = _load_elsewhere(tmp_path)
    assert loaded["checksum"] == num_matrices == 1024
    # The whole process, interpreter and torch included.
    assert loaded["peak"] <= 1.1 * num_matrices * _MATRIX_BYTES
