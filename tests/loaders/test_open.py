"""What ``open_checkpoint`` makes of a path."""

import numpy as np
import pytest
import torch

from pageport.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.loaders.gguf import GgufCheckpoint
from pageport.models.loaders.safetensors import SafetensorsCheckpoint

_METADATA = {
    "embedding_length": 8,
    "block_count": 0,
    "attention.head_count": 1,
    "feed_forward_length": 8,
    "context_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_TENSORS = {"token_embd.weight": np.zeros((4, 8), np.float32)}


def test_a_missing_path_is_said_to_be_missing(tmp_path):
    with pytest.raises(ModelNotFound, match="nowhere does not exist"):
        open_checkpoint(tmp_path / "nowhere")


def test_an_empty_folder_lacks_both_config_and_weights(tmp_path):
    with pytest.raises(ModelNotFound, match=r"holds no weights \(\*\.safetensors or one \.gguf file\) and no config"):
        open_checkpoint(tmp_path)


def test_a_config_without_weights_is_refused(tmp_path):
    """WGT-01"""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match=r"holds no weights \(.*\)\. .*interrupted"):
        open_checkpoint(tmp_path)


def test_weights_without_a_config_are_refused(save_folder, tmp_path):
    (save_folder(tmp_path, {}, {"w": torch.ones(2, 2)}) / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"holds weights but no config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("content", "problem"), [("{", "not valid JSON"), ("[1]", "a JSON list"), ("", "not valid")])
def test_a_damaged_config_is_refused_by_name(content, problem, save_folder, tmp_path):
    (save_folder(tmp_path, {}, {"w": torch.ones(2, 2)}) / "config.json").write_text(content)
    with pytest.raises(CorruptWeights, match=rf"config\.json.*{problem}"):
        open_checkpoint(tmp_path)


def test_a_folder_with_one_gguf_file_opens_that_file(write_gguf, tmp_path):
    file = write_gguf(tmp_path / "a.gguf", "llama", _METADATA, _TENSORS)
    checkpoint = open_checkpoint(tmp_path)
    assert isinstance(checkpoint, GgufCheckpoint)
    assert checkpoint.path == file


def test_a_folder_with_several_gguf_files_asks_for_one(write_gguf, tmp_path):
    for name in ("b.gguf", "a.gguf"):
        write_gguf(tmp_path / name, "llama", _METADATA, _TENSORS)
    with pytest.raises(ModelNotFound, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        open_checkpoint(tmp_path)


def test_safetensors_win_over_a_gguf_file(write_gguf, save_folder, tmp_path):
    write_gguf(tmp_path / "a.gguf", "llama", _METADATA, _TENSORS)
    save_folder(tmp_path, {}, {"w": torch.ones(2, 2)})
    assert isinstance(open_checkpoint(tmp_path), SafetensorsCheckpoint)


def test_a_file_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"model\.onnx is not a \.gguf file"):
        open_checkpoint(file)
