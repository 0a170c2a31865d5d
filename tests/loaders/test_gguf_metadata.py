"""Metadata is read without any heavy package, and damage to it is told."""

import subprocess
import sys

import gguf
import numpy as np
import pytest

from pageport.errors import CorruptWeights
from pageport.models.gguf_metadata import GgufArray, open_gguf, read_gguf_metadata

_TOKENS = [*(f"<{token}>" for token in range(300)), "日本", "", "a b"]
_METADATA = {
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.token_type": [1, 2, 3],
    "tokenizer.ggml.scores": [0.5, -1.25],
    "count": 7,
    "factor": 0.5,
    "flag": True,
    "flags": [True, False],
    "general.name": "naïve",
}


@pytest.fixture
def written(write_gguf, tmp_path):
    tensors = {"token_embd.weight": np.zeros((4, 8), np.float32)}
    return write_gguf(tmp_path / "tiny.gguf", "llama", _METADATA, tensors)


def test_metadata_is_read_as_it_was_written(written):
    assert read_gguf_metadata(written) == {
        "general.architecture": "llama",
        "general.name": "naïve",
        "llama.count": 7,
        "llama.factor": 0.5,
        "llama.flag": True,
        "llama.flags": [True, False],
        "tokenizer.ggml.tokens": _TOKENS,
        "tokenizer.ggml.token_type": [1, 2, 3],
        "tokenizer.ggml.scores": [0.5, -1.25],
    }


@pytest.mark.parametrize("kind", gguf.GGUFValueType)
def test_every_type_is_read_as_it_was_written(kind, tmp_path):
    value = {"STRING": "text", "ARRAY": [1, 2], "BOOL": True, "FLOAT32": 1.5, "FLOAT64": 1.5}.get(kind.name, 77)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_key_value("x", value, kind, sub_type=gguf.GGUFValueType.INT32 if kind.name == "ARRAY" else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_gguf_metadata(tmp_path / "one.gguf") == {"general.architecture": "llama", "x": value}


def test_an_array_stays_in_the_file_until_asked_for(written):
    with open_gguf(written) as cursor:
        metadata = cursor.metadata(cursor.counts().entries)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, GgufArray)
    assert (tokens.count, tokens.values()) == (303, _TOKENS)


@pytest.mark.parametrize(("text", "index"), [("<0>", 0), ("<299>", 299), ("日本", 300), ("", 301), ("<300>", None)])
def test_a_string_is_found_in_an_array(text, index, written):
    with open_gguf(written) as cursor:
        metadata = cursor.metadata(cursor.counts().entries)
    assert metadata["tokenizer.ggml.tokens"].index(text) == index
    assert metadata["tokenizer.ggml.token_type"].index(text) is None


def test_a_string_is_found_past_one_that_holds_its_bytes(write_gguf, tmp_path):
    """The first string holds the second as the file stores it, length and all."""
    tokens = ["x\x02\0\0\0\0\0\0\0ab", "ab"]
    file = write_gguf(tmp_path / "m.gguf", "llama", {"tokenizer.ggml.tokens": tokens}, {})
    with open_gguf(file) as cursor:
        metadata = cursor.metadata(cursor.counts().entries)
    assert metadata["tokenizer.ggml.tokens"].index("ab") == 1


def test_metadata_that_is_cut_off_anywhere_is_an_error(written):
    """WGT-02"""
    whole = written.read_bytes()
    for size in (0, 3, 20, 60, 500, whole.index("naïve".encode())):
        written.write_bytes(whole[:size])
        with pytest.raises(CorruptWeights, match=r"tiny\.gguf.*expected \d+ bytes, found"):
            read_gguf_metadata(written)


@pytest.mark.parametrize("text", ["naïve".encode(), "日本".encode()])
def test_text_that_is_not_utf8_is_an_error(text, written):
    """WGT-02"""
    written.write_bytes(written.read_bytes().replace(text, b"\xff" * len(text)))
    with pytest.raises(CorruptWeights, match=r"tiny\.gguf: a string .* byte \d+ is not UTF-8"):
        read_gguf_metadata(written)


def test_an_unknown_type_is_named_with_its_key(written):
    """WGT-02"""
    written.write_bytes(written.read_bytes().replace(b"llama.count\x04", b"llama.count\x63"))
    with pytest.raises(CorruptWeights, match=r"llama\.count has the unknown type 99"):
        read_gguf_metadata(written)


def test_reading_needs_no_heavy_package():
    code = (
        "import sys, pageport.models.gguf_metadata\n"
        "assert not {'torch', 'transformers', 'numpy', 'gguf'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
