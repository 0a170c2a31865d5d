"""A damaged GGUF file is refused by name, with the sizes expected and found, before anything is served."""

import struct

import numpy as np
import pytest

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.loaders.gguf_header import read_gguf_header

_METADATA = {"block_count": 1, "tokenizer.ggml.tokens": ["a", "bb", "ccc"], "general.name": "tiny"}
_TENSORS = {"token_embd.weight": np.zeros((16, 32), np.float32), "output_norm.weight": np.ones(32, np.float32)}
# Magic, version and two counts; then, since the writer puts it first, the key general.architecture.
_FIRST_KEY_LENGTH = 24


@pytest.fixture
def whole(write_gguf, tmp_path):
    return write_gguf(tmp_path / "tiny.gguf", "llama", _METADATA, _TENSORS)


def _patch(path, offset, data):
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def test_a_whole_file_is_read(whole):
    header = read_gguf_header(whole)
    assert {name: tensor.shape for name, tensor in header.tensors.items()} == {
        "token_embd.weight": (16, 32),
        "output_norm.weight": (32,),
    }
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert (tokens.count, tokens.index("ccc"), tokens.index("dddd")) == (3, 2, None)


@pytest.mark.parametrize("cut", [1, 32, 1024])
def test_a_file_cut_off_in_its_data_is_refused_with_both_sizes(cut, whole):
    """WGT-02"""
    size = whole.stat().st_size
    whole.write_bytes(whole.read_bytes()[:-cut])
    with pytest.raises(CorruptWeights, match=rf"tiny\.gguf.*expected {size} bytes, found {size - cut}\).*interrupted"):
        open_checkpoint(whole)


@pytest.mark.parametrize("kept", [*range(0, 24, 5), 24, 60, 100, 180, 240, 300])
def test_a_file_cut_off_in_its_header_is_refused(kept, whole):
    """WGT-02"""
    whole.write_bytes(whole.read_bytes()[:kept])
    with pytest.raises(CorruptWeights, match=rf"tiny\.gguf.*expected \d+ bytes, found {kept}\)"):
        open_checkpoint(whole)


@pytest.mark.parametrize("offset", [8, 16, _FIRST_KEY_LENGTH])
def test_an_absurd_count_or_length_is_refused_without_allocating(offset, whole):
    """WGT-02: the number of tensors, of entries, and the length of a string."""
    _patch(whole, offset, struct.pack("<Q", 2**60))
    with pytest.raises(CorruptWeights, match=r"tiny\.gguf"):
        open_checkpoint(whole)


def test_an_absurd_array_length_is_refused(whole):
    """WGT-02"""
    content = whole.read_bytes()
    count = content.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    _patch(whole, count, struct.pack("<Q", 2**60))
    with pytest.raises(CorruptWeights, match="ends within its header"):
        open_checkpoint(whole)


def test_an_absurd_string_length_within_an_array_is_refused(whole):
    """WGT-02"""
    content = whole.read_bytes()
    _patch(whole, content.index(b"bb") - 8, struct.pack("<Q", 2**63 + 1))
    with pytest.raises(CorruptWeights, match="an array of 3 strings passes its end"):
        open_checkpoint(whole)


def test_trailing_bytes_are_refused(whole):
    """WGT-02"""
    size = whole.stat().st_size
    whole.write_bytes(whole.read_bytes() + bytes(32))
    with pytest.raises(CorruptWeights, match=rf"expected {size} bytes, found {size + 32}"):
        open_checkpoint(whole)


def test_overlapping_tensors_are_refused(whole):
    """WGT-02"""
    content = whole.read_bytes()
    # Name, number of dimensions, one dimension, type, offset.
    offset = content.index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8 + 4
    _patch(whole, offset, struct.pack("<Q", 64))
    with pytest.raises(CorruptWeights, match=r"output_norm\.weight starts at byte \d+, where \d+ is the first free"):
        open_checkpoint(whole)


def test_an_lfs_pointer_is_recognised(tmp_path):
    """WGT-02"""
    pointer = tmp_path / "tiny.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n")
    with pytest.raises(
        CorruptWeights, match=r"tiny\.gguf is a Git LFS pointer.*expected 98362432 bytes, found 7\d.*git"
    ):
        open_checkpoint(pointer)


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    file = tmp_path / "page.gguf"
    file.write_text("<!DOCTYPE html><html>please sign in</html>")
    with pytest.raises(CorruptWeights, match=r"page\.gguf is not a GGUF file: it begins with b'<!DO'"):
        open_checkpoint(file)


@pytest.mark.parametrize(("version", "problem"), [(1, "GGUF version 1"), (0x03000000, "big-endian")])
def test_other_versions_and_byte_orders_are_refused(version, problem, whole):
    _patch(whole, 4, struct.pack("<I", version))
    with pytest.raises(UnsupportedModel, match=problem):
        open_checkpoint(whole)


def test_an_unknown_tensor_type_is_refused(whole):
    kind = whole.read_bytes().index(b"output_norm.weight") + len(b"output_norm.weight") + 4 + 8
    _patch(whole, kind, struct.pack("<I", 99))
    with pytest.raises(UnsupportedModel, match=r"output_norm\.weight has the unknown GGML type 99"):
        open_checkpoint(whole)
