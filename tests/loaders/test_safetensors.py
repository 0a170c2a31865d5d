"""Reading safetensors: orientation, row order, types, shards."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.spec import BiasPart, MatrixPart, RowOrder

_W = torch.arange(24, dtype=torch.float32).view(6, 4)


def test_a_matrix_is_read_as_stored(save_folder, tmp_path):
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W}))
    matrix = checkpoint.matrix(MatrixPart(name="w", rows=6), in_features=4)
    assert (matrix.scheme, matrix.shape) == ("f32", (6, 4))
    assert matrix.source == f"{tmp_path}/model.safetensors: w"
    assert torch.equal(matrix.read()["weight"], _W)


def test_a_transposed_matrix_is_turned(save_folder, tmp_path):
    """ARC-11"""
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W}))
    weight = checkpoint.matrix(MatrixPart(name="w", rows=4, transposed=True), in_features=6).read()["weight"]
    assert torch.equal(weight, _W.t())
    assert weight.is_contiguous()


def test_rows_are_put_in_the_order_asked_for(save_folder, tmp_path):
    """Rows 0 and 3 are q, 1 and 4 k, 2 and 5 v of two heads one wide."""
    order = RowOrder(shape=(2, 3, 1), axes=(1, 0, 2))
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W, "b": torch.arange(6.0)}))
    part = MatrixPart(name="w", rows=6, row_order=order)
    assert torch.equal(checkpoint.matrix(part, 4).read()["weight"], _W[[0, 3, 1, 4, 2, 5]])
    assert checkpoint.vector(BiasPart(name="b", rows=6, row_order=order)).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("dtype", "scheme"), [(torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f16")]
)
def test_types_are_kept_for_matrices_and_widened_for_vectors(dtype, scheme, save_folder, tmp_path):
    """NUM-01: bf16 stays bf16."""
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W.to(dtype), "b": torch.ones(6, dtype=dtype)}))
    assert checkpoint.scheme == scheme
    assert checkpoint.matrix(MatrixPart(name="w", rows=6), 4).read()["weight"].dtype == dtype
    assert checkpoint.vector(BiasPart(name="b", rows=6)).dtype == torch.float32


def test_the_scheme_is_that_of_most_weights_in_matrices(save_folder, tmp_path):
    tensors = {"a": _W.bfloat16(), "b": _W.bfloat16(), "c": _W, "d": torch.zeros(500)}
    assert open_checkpoint(save_folder(tmp_path, {}, tensors)).scheme == "bf16"


def test_other_types_are_refused_by_name(save_folder, tmp_path):
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": torch.zeros(6, 4, dtype=torch.float8_e4m3fn)}))
    with pytest.raises(UnsupportedModel, match=r"safetensors: w is stored as F8_E4M3; weights can be F32, BF16, F16"):
        checkpoint.matrix(MatrixPart(name="w", rows=6), 4)


def test_a_vector_does_not_keep_the_file_mapped(save_folder, tmp_path):
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"b": torch.ones(6), "w": _W}))
    vector = checkpoint.vector(BiasPart(name="b", rows=6))
    weight = checkpoint.matrix(MatrixPart(name="w", rows=6), 4).read()
    assert str(tmp_path) in _mappings()
    del weight
    assert str(tmp_path) not in _mappings()
    assert vector.sum() == 6


def test_shards_are_read_through_their_index(save_folder, tmp_path):
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"a": _W}, {"b": 2 * _W}))
    assert checkpoint.names() == {"a", "b"}
    assert torch.equal(checkpoint.matrix(MatrixPart(name="b", rows=6), 4).read()["weight"], 2 * _W)


def test_one_file_of_any_name_is_enough(save_folder, tmp_path):
    (save_folder(tmp_path, {}, {"w": _W}) / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert open_checkpoint(tmp_path).names() == {"w"}


def test_a_complete_set_of_shards_needs_no_index(save_folder, tmp_path):
    (save_folder(tmp_path, {}, {"a": _W}, {"b": _W}) / "model.safetensors.index.json").unlink()
    assert open_checkpoint(tmp_path).names() == {"a", "b"}


def test_stray_files_are_ignored(save_folder, tmp_path):
    """WGT-01"""
    save_folder(tmp_path, {}, {"a": _W}, {"b": _W})
    save_file({"a": 3 * _W, "stray": _W.clone()}, tmp_path / "consolidated.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"")
    assert open_checkpoint(tmp_path).names() == {"a", "b"}


def test_another_shape_than_the_config_implies_is_refused(save_folder, tmp_path):
    """WGT-01"""
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W, "b": torch.ones(6)}))
    with pytest.raises(CorruptWeights, match=r"model\.safetensors: w is stored as \[6, 4\] where .* \[5, 4\]"):
        checkpoint.matrix(MatrixPart(name="w", rows=5), 4)
    with pytest.raises(CorruptWeights, match=r"model\.safetensors: b is stored as \[6\] where .* \[7\]"):
        checkpoint.vector(BiasPart(name="b", rows=7))


def test_a_missing_tensor_is_named_with_the_files_searched(save_folder, tmp_path):
    checkpoint = open_checkpoint(save_folder(tmp_path, {}, {"w": _W}))
    for look_up in (checkpoint.shape, lambda name: checkpoint.vector(BiasPart(name=name, rows=6))):
        with pytest.raises(CorruptWeights, match=r"the tensor lm_head\.weight is in none of model\.safetensors"):
            look_up("lm_head.weight")


def test_the_config_is_read_with_a_byte_order_mark_and_windows_line_ends(save_folder, tmp_path):
    save_folder(tmp_path, {}, {"w": _W})
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{\r\n  "hidden_size": 4\r\n}\r\n')
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == {"hidden_size": 4}
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}


def test_code_that_the_config_names_is_not_run(save_folder, tmp_path):
    """SEC-09"""
    save_folder(tmp_path, {"auto_map": {"AutoConfig": "evil.Config"}}, {"w": _W})
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    assert open_checkpoint(tmp_path).names() == {"w"}
    assert not (tmp_path / "marker").exists()


def _mappings():
    return Path("/proc/self/maps").read_text()
