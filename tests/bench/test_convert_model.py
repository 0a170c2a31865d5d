"""GGUF files in other types hold the same values, rounded."""

from pathlib import Path

import convert_model
import gguf
import numpy as np
import pytest

# The largest error of each type, as a share of the largest value of a block.
ERRORS = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 0.5 / 127 + 2**-11}


@pytest.fixture
def q4_1_model(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    writer.add_block_count(7)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ž", "c"])
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("matrix", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("norm", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "source.gguf"


def tensors(path: Path) -> dict[str, np.ndarray]:
    reader = gguf.GGUFReader(path)
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}


@pytest.mark.parametrize("type_name", sorted(ERRORS))
def test_every_value_is_the_sources_rounded_to_the_type(q4_1_model: Path, tmp_path: Path, type_name: str) -> None:
    convert_model.write_gguf(q4_1_model, tmp_path / "out.gguf", type_name)
    expected, found = tensors(q4_1_model), tensors(tmp_path / "out.gguf")
    bound = ERRORS[type_name] * np.abs(expected["matrix"]).max()
    assert np.abs(found["matrix"] - expected["matrix"]).max() <= bound
    np.testing.assert_array_equal(found["norm"], expected["norm"])


def test_metadata_stays_and_the_file_type_follows(q4_1_model: Path, tmp_path: Path) -> None:
    convert_model.write_gguf(q4_1_model, tmp_path / "out.gguf", "Q8_0")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["llama.block_count"] == 7
    assert fields["tokenizer.ggml.tokens"] == ["a", "ž", "c"]
    assert fields["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    assert [t.tensor_type.name for t in reader.tensors] == ["Q8_0", "F32"]
