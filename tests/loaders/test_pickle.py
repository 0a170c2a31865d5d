"""Pickles are read only when allowed, and then nothing in them runs (SEC-09)."""

import json
import os
import pickle

import pytest
import torch

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.spec import BiasPart, MatrixPart

_W = torch.arange(24, dtype=torch.float32).view(6, 4)


class _Evil:
    def __init__(self, command):
        self._command = command

    def __reduce__(self):
        return os.system, (self._command,)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    torch.save({"w": _W.bfloat16(), "b": torch.ones(6)}, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_a_pickle_is_refused_unless_allowed(folder):
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin, a pickle.*safetensors.*--allow-pickle"):
        open_checkpoint(folder)


def test_an_allowed_pickle_is_read(folder):
    checkpoint = open_checkpoint(folder, allow_pickle=True)
    matrix = checkpoint.matrix(MatrixPart(name="w", rows=6), 4)
    assert (checkpoint.names(), checkpoint.scheme, matrix.scheme) == ({"w", "b"}, "bf16", "bf16")
    assert torch.equal(matrix.read()["weight"], _W.bfloat16())
    assert checkpoint.vector(BiasPart(name="b", rows=6)).tolist() == [1.0] * 6


def test_shards_are_read_through_their_index(folder):
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model-00001-of-00002.bin")
    torch.save({"v": 2 * _W}, folder / "pytorch_model-00002-of-00002.bin")
    weight_map = dict.fromkeys("wb", "pytorch_model-00001-of-00002.bin") | {"v": "pytorch_model-00002-of-00002.bin"}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = open_checkpoint(folder, allow_pickle=True)
    assert torch.equal(checkpoint.matrix(MatrixPart(name="v", rows=6), 4).read()["weight"], 2 * _W)
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(
        CorruptWeights, match=r"00002-of-00002\.bin of 2 shards in pytorch_model\.bin\.index\.json is missing"
    ):
        open_checkpoint(folder, allow_pickle=True)


@pytest.mark.parametrize("protocol", ["zip", "plain"])
def test_a_pickle_that_would_run_code_is_refused_and_does_not(protocol, folder):
    evil = {"w": _Evil(f"touch {folder / 'marker'}")}
    if protocol == "zip":
        torch.save(evil, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(evil))
    with pytest.raises(UnsupportedModel, match=r"pytorch_model\.bin"):
        open_checkpoint(folder, allow_pickle=True)
    assert not (folder / "marker").exists()


def test_safetensors_win_where_both_are_there(folder, save_folder):
    torch.save({"w": _Evil(f"touch {folder / 'marker'}")}, folder / "pytorch_model.bin")
    save_folder(folder, {}, {"w": _W})
    for allow_pickle in (False, True):
        assert open_checkpoint(folder, allow_pickle=allow_pickle).names() == {"w"}
    assert not (folder / "marker").exists()


@pytest.mark.parametrize("kept", [0, 100, 0.5])
def test_a_damaged_pickle_is_refused(kept, folder):
    content = (folder / "pytorch_model.bin").read_bytes()
    kept = int(len(content) * kept) if isinstance(kept, float) else kept
    (folder / "pytorch_model.bin").write_bytes(content[:kept])
    with pytest.raises((CorruptWeights, UnsupportedModel), match=r"pytorch_model\.bin.*damaged|interrupted"):
        open_checkpoint(folder, allow_pickle=True)


def test_what_is_not_tensors_by_name_is_refused(folder):
    torch.save({"model": {"w": _W}}, folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="does not hold tensors by name"):
        open_checkpoint(folder, allow_pickle=True)


def test_the_old_format_is_refused(folder):
    torch.save({"w": _W}, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(UnsupportedModel, match=r"before PyTorch 1\.6"):
        open_checkpoint(folder, allow_pickle=True)
