"""Every supported GGUF type is handed over as stored, and what it means agrees with the gguf package."""

import gguf
import numpy as np
import pytest
import torch

from pageport.backend.reference.dequantise import dequantise
from pageport.errors import UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.spec import BiasPart, MatrixPart, RowOrder

_TYPE = gguf.GGMLQuantizationType
_METADATA = {
    "embedding_length": 256,
    "block_count": 1,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "feed_forward_length": 256,
    "context_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_QUERY = MatrixPart(name="model.layers.0.self_attn.q_proj.weight", rows=256)
_KEY = MatrixPart(name="model.layers.0.self_attn.k_proj.weight", rows=128)
_VALUE = MatrixPart(name="model.layers.0.self_attn.v_proj.weight", rows=128)
_BLOCK_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
# Bytes of a block of 256 weights that hold a float16 scale: random ones would be infinite.
_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def _stored(kind, rows, seed=0):
    """Return random rows of 256 weights as the type stores them."""
    generator = np.random.default_rng(seed)
    if kind not in _SCALES:
        return gguf.quants.quantize(generator.standard_normal((rows, 256), np.float32), _TYPE[kind])
    blocks = generator.integers(0, 256, (rows, gguf.GGML_QUANT_SIZES[_TYPE[kind]][1]), np.uint8)
    for byte in _SCALES[kind]:
        blocks[:, byte : byte + 2] = np.full((rows, 1), 0.01, np.float16).view(np.uint8)
    return blocks


@pytest.fixture
def open_gguf(write_gguf, tmp_path):
    def make(tensors, types=None, architecture="qwen2", **metadata):
        tensors = {"token_embd.weight": np.zeros((4, 256), np.float32), **tensors}
        return open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture, {**_METADATA, **metadata}, tensors, types))

    return make


@pytest.mark.parametrize("kind", _BLOCK_TYPES)
def test_blocks_are_handed_over_as_stored(kind, open_gguf):
    stored = _stored(kind, rows=256)
    checkpoint = open_gguf({"blk.0.attn_q.weight": stored}, {"blk.0.attn_q.weight": _TYPE[kind]})
    matrix = checkpoint.matrix(_QUERY, 256)
    assert (matrix.scheme, matrix.shape, checkpoint.scheme) == (kind.lower(), (256, 256), kind.lower())
    blocks = matrix.read()["blocks"]
    assert blocks.dtype == torch.uint8
    assert np.array_equal(blocks.numpy(), stored)


@pytest.mark.parametrize("kind", _BLOCK_TYPES)
def test_unpermuted_blocks_dequantise_to_unpermuted_weights(kind, open_gguf):
    """GGU-01: the row operation is valid on quantised rows; the gguf package's dequantizer is the witness."""
    stored = _stored(kind, rows=128)
    checkpoint = open_gguf({"blk.0.attn_k.weight": stored}, {"blk.0.attn_k.weight": _TYPE[kind]}, "llama")
    weights = torch.from_numpy(gguf.quants.dequantize(stored, _TYPE[kind]))
    expected = weights.view(2, 32, 2, 256).transpose(1, 2).reshape(128, 256)
    assert torch.equal(dequantise(kind.lower(), checkpoint.matrix(_KEY, 256).read()["blocks"]), expected)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_plain_numbers_keep_their_type(kind, dtype, open_gguf):
    values = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    types = {} if kind == "F32" else {"blk.0.attn_q.weight": _TYPE[kind]}
    matrix = open_gguf({"blk.0.attn_q.weight": values}, types).matrix(_QUERY, 256)
    assert matrix.scheme == kind.lower()
    assert torch.equal(matrix.read()["weight"], torch.from_numpy(values).to(dtype))


def test_each_part_of_a_projection_has_its_own_type(open_gguf):
    """GGU-05: files of small models mix types where rows are not whole large blocks."""
    names = ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight")
    kinds = dict(zip(names, ("Q4_K", "Q5_0", "Q8_0"), strict=True))
    rows = dict(zip(names, (256, 128, 128), strict=True))
    checkpoint = open_gguf(
        {name: _stored(kinds[name], rows[name]) for name in names}, {name: _TYPE[kinds[name]] for name in names}
    )
    parts = [checkpoint.matrix(part, 256) for part in (_QUERY, _KEY, _VALUE)]
    assert [part.scheme for part in parts] == ["q4_k", "q5_0", "q8_0"]
    assert [tuple(part.read()["blocks"].shape) for part in parts] == [(256, 144), (128, 176), (128, 272)]


def test_the_scheme_is_that_of_most_bytes(open_gguf):
    tensors = {"blk.0.attn_q.weight": _stored("Q4_K", 256), "blk.0.attn_k.weight": _stored("Q6_K", 128)}
    types = {"blk.0.attn_q.weight": _TYPE.Q4_K, "blk.0.attn_k.weight": _TYPE.Q6_K}
    assert open_gguf(tensors, types).scheme == "q4_k"


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_vectors_come_as_float32(kind, open_gguf):
    norm = np.arange(256, dtype=np.float32)
    checkpoint = open_gguf({"output_norm.weight": norm}, {"output_norm.weight": _TYPE[kind]})
    vector = checkpoint.vector(BiasPart(name="model.norm.weight", rows=256))
    assert torch.equal(vector, torch.arange(256, dtype=torch.float32))


def test_a_row_order_asked_for_is_applied(open_gguf):
    values = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    checkpoint = open_gguf({"blk.0.attn_q.weight": values})
    part = MatrixPart(name=_QUERY.name, rows=256, row_order=RowOrder(shape=(2, 128), axes=(1, 0)))
    assert np.array_equal(checkpoint.matrix(part, 256).read()["weight"][:3], values[[0, 128, 1]])


def test_what_is_read_can_be_written_without_changing_the_file(open_gguf):
    checkpoint = open_gguf({"blk.0.attn_q.weight": np.ones((256, 256), np.float32)})
    checkpoint.matrix(_QUERY, 256).read()["weight"].zero_()
    assert checkpoint.matrix(_QUERY, 256).read()["weight"].sum() == 256 * 256


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS", "IQ2_XXS"])
def test_an_unsupported_type_is_named_with_its_tensor(kind, open_gguf):
    blocks = np.zeros((256, gguf.GGML_QUANT_SIZES[_TYPE[kind]][1]), np.uint8)
    with pytest.raises(UnsupportedModel, match=rf"blk\.0\.attn_q\.weight is quantised as {kind}; .*Q4_0.*Q6_K"):
        open_gguf({"blk.0.attn_q.weight": blocks}, {"blk.0.attn_q.weight": _TYPE[kind]})


def test_a_part_of_a_split_model_is_refused(open_gguf):
    with pytest.raises(UnsupportedModel, match=r"one of 3 parts.*llama-gguf-split --merge"):
        open_gguf({}, **{"split.count": 3})
