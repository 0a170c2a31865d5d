"""A damaged or incomplete folder is refused by file and tensor before anything is served."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from pageport.errors import CorruptWeights
from pageport.models.loaders import open_checkpoint

_W = torch.ones(64, 32)
_SECOND = "model-00002-of-00002.safetensors"
_INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(save_folder, tmp_path):
    return save_folder(tmp_path, {}, {"a": _W, "x": torch.ones(8)}, {"b": _W, "c": _W})


def _write_file(path, header, data):
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_missing_shard_is_named(is_renamed, folder):
    """WGT-01"""
    (folder / _SECOND).rename(folder / "other.safetensors") if is_renamed else (folder / _SECOND).unlink()
    with pytest.raises(CorruptWeights, match=rf"{_SECOND} of 2 shards in {_INDEX} is missing.*interrupted"):
        open_checkpoint(folder)


@pytest.mark.parametrize("left", [1, 2])
def test_shards_that_lack_their_index_must_be_complete(left, folder):
    """WGT-01"""
    (folder / _INDEX).unlink()
    (folder / f"model-0000{left}-of-00002.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / _SECOND).unlink(missing_ok=True)
    with pytest.raises(CorruptWeights, match=r"not a complete set of shards.*interrupted"):
        open_checkpoint(folder)


def test_several_files_without_an_index_are_refused(folder):
    (folder / _INDEX).unlink()
    save_file({"z": _W}, folder / "extra.safetensors")
    with pytest.raises(CorruptWeights, match=r"has no model\.safetensors\.index\.json, and extra\.safetensors, model-"):
        open_checkpoint(folder)


def test_an_index_that_lists_a_tensor_its_shard_lacks_is_refused(folder):
    """WGT-01"""
    index = json.loads((folder / _INDEX).read_text())
    index["weight_map"]["d"] = _SECOND
    (folder / _INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptWeights, match=rf"says that d is in {_SECOND}, which does not hold it"):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_is_refused(folder):
    """WGT-01"""
    save_file({name: _W.clone() for name in "abc"}, folder / _SECOND)
    with pytest.raises(CorruptWeights, match=rf"a is stored twice, in .*model-00001-of-00002.* and in {_SECOND}"):
        open_checkpoint(folder)


def test_an_index_that_points_outside_the_folder_is_refused(folder):
    (folder / _INDEX).write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(CorruptWeights, match=r"names '\.\./secret\.safetensors', which is not a file of its folder"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "{}"])
def test_a_damaged_index_is_refused(content, folder):
    (folder / _INDEX).write_text(content)
    with pytest.raises(CorruptWeights, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("cut", [1, 1024, 8192])
def test_a_shard_cut_off_in_its_data_is_refused_with_both_sizes(cut, folder):
    """WGT-02"""
    content = (folder / _SECOND).read_bytes()
    (folder / _SECOND).write_bytes(content[:-cut])
    with pytest.raises(
        CorruptWeights, match=rf"{_SECOND}.*expected {len(content)} bytes, found {len(content) - cut}\).*interrupted"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize("kept", [0, 4, 8, 60])
def test_a_shard_cut_off_in_its_header_is_refused(kept, folder):
    """WGT-02"""
    (folder / _SECOND).write_bytes((folder / _SECOND).read_bytes()[:kept])
    with pytest.raises(CorruptWeights, match=rf"{_SECOND}.*expected \d+ bytes, found {kept}\)"):
        open_checkpoint(folder)


def test_trailing_bytes_are_refused(folder):
    """WGT-02"""
    content = (folder / _SECOND).read_bytes()
    (folder / _SECOND).write_bytes(content + b"x")
    with pytest.raises(CorruptWeights, match=rf"expected {len(content)} bytes, found {len(content) + 1}"):
        open_checkpoint(folder)


def test_an_absurd_header_length_is_refused_without_allocating(folder):
    """WGT-02"""
    content = (folder / _SECOND).read_bytes()
    (folder / _SECOND).write_bytes(struct.pack("<Q", 2**60) + content[8:])
    with pytest.raises(CorruptWeights, match=rf"{_SECOND}: its header claims {2**60} bytes \(expected"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ([4, 12], r"b starts at byte 4 of the data, 8 was expected: it overlaps"),
        ([12, 20], r"b starts at byte 12 of the data, 8 was expected: it leaves a gap"),
        ([8, 12], r"b \(F32 \[2\]\) takes 4 bytes where 8 are needed"),
        ([8, 4], r"b \(F32 \[2\]\) takes -4 bytes"),
    ],
)
def test_offsets_that_do_not_tile_the_data_are_refused(second, problem, tmp_path):
    """WGT-02"""
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": second},
    }
    (tmp_path / "config.json").write_text("{}")
    _write_file(tmp_path / "model.safetensors", header, bytes(max(8, *second)))
    with pytest.raises(CorruptWeights, match=problem):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F32"}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}},
    ],
)
def test_a_header_of_another_form_is_refused(header, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    _write_file(tmp_path / "model.safetensors", header, bytes(8))
    with pytest.raises(CorruptWeights, match=r"model\.safetensors: its header is not a safetensors header"):
        open_checkpoint(tmp_path)


def test_an_lfs_pointer_is_recognised(folder):
    """WGT-02"""
    (folder / _SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4965799096\n")
    with pytest.raises(CorruptWeights, match=rf"{_SECOND} is a Git LFS pointer.*expected 4965799096 bytes, found 7"):
        open_checkpoint(folder)
