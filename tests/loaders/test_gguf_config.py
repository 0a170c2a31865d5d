"""Metadata that is not one number for one number."""

import math

import numpy as np
import pytest
import torch

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.registry import decoder_spec
from pageport.models.rope import rope_table
from pageport.models.spec import BiasPart, MatrixPart, RopeSpec

_METADATA = {
    "embedding_length": 64,
    "block_count": 1,
    "attention.head_count": 1,
    "feed_forward_length": 64,
    "context_length": 4096,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
_IDS = "tokenizer.ggml."


@pytest.fixture
def open_gguf(write_gguf, tmp_path):
    def make(architecture="llama", tensors=None, **metadata):
        tensors = {"token_embd.weight": np.zeros((11, 64), np.float32), **(tensors or {})}
        return open_checkpoint(write_gguf(tmp_path / "m.gguf", architecture, {**_METADATA, **metadata}, tensors))

    return make


def test_the_vocabulary_is_as_large_as_the_embedding(open_gguf):
    checkpoint = open_gguf(**{"vocab_size": 9, f"{_IDS}tokens": ["a", "b"]})
    assert checkpoint.config["vocab_size"] == 11


@pytest.mark.parametrize(
    ("tensors", "is_tied"), [({}, True), ({"output.weight": np.zeros((11, 64), np.float32)}, False)]
)
def test_the_head_is_tied_unless_it_is_stored(tensors, is_tied, open_gguf):
    assert open_gguf(tensors=tensors).config["tie_word_embeddings"] is is_tied


def test_every_id_that_ends_a_generation_is_listed_once(open_gguf):
    """STP-06"""
    ids = {f"{_IDS}eos_token_id": 2, f"{_IDS}eot_token_id": 7, f"{_IDS}eom_token_id": 2, f"{_IDS}bos_token_id": 1}
    assert open_gguf(**ids).generation_config == {"bos_token_id": 1, "eos_token_id": [2, 7]}


def test_a_missing_end_of_turn_id_is_found_by_its_text(open_gguf):
    """STP-06: converters that know only one id leave the other one out."""
    tokens = {f"{_IDS}tokens": ["<end_of_turn", "x<end_of_turn>", "<end_of_turn>", "y"], f"{_IDS}eos_token_id": 1}
    assert open_gguf(**tokens).generation_config["eos_token_id"] == [1, 2]
    assert open_gguf(**tokens, **{f"{_IDS}token_type": [1, 1, 3, 1]}).generation_config["eos_token_id"] == [1, 2]


def test_an_ordinary_token_that_looks_like_an_end_of_turn_is_none(open_gguf):
    tokens = {f"{_IDS}tokens": ["a", "<|im_end|>"], f"{_IDS}token_type": [1, 1], f"{_IDS}eos_token_id": 0}
    assert open_gguf(**tokens).generation_config["eos_token_id"] == [0]


def _llama3_factors(base, size, factor, low, high, original):
    """Return what the converter stores of LLaMA 3.1's scaling."""
    wavelengths = [2 * math.pi * base ** (2 * pair / size) for pair in range(size // 2)]

    def divisor(wavelength):
        if wavelength < original / high:
            return 1.0
        if wavelength > original / low:
            return factor
        smooth = (original / wavelength - low) / (high - low)
        return 1 / ((1 - smooth) / factor + smooth)

    return np.array([divisor(wavelength) for wavelength in wavelengths], np.float32)


def test_stored_rope_factors_give_the_angles_of_llama3(open_gguf):
    """ARC-04: never silently unscaled."""
    factors = _llama3_factors(500_000.0, 64, factor=8.0, low=1.0, high=4.0, original=512)
    checkpoint = open_gguf(tensors={"rope_freqs.weight": factors}, **{"rope.freq_base": 500_000.0})
    assert "rope_freqs.weight" not in checkpoint.names()
    (rope,) = decoder_spec(checkpoint.config, checkpoint.names()).ropes
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    expected = RopeSpec(rotary_size=64, base=500_000.0, scaling={"rope_type": "llama3", **scaling})
    torch.testing.assert_close(rope_table(rope, 301), rope_table(expected, 301), atol=1e-4, rtol=0.0)


def test_phi3_has_factors_for_short_and_for_long_prompts(open_gguf):
    checkpoint = open_gguf(
        "phi3",
        tensors={
            "rope_factors_short.weight": np.full(32, 2.0, np.float32),
            "rope_factors_long.weight": np.full(32, 4.0, np.float32),
        },
        **{"rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": 1.25},
    )
    (rope,) = decoder_spec(checkpoint.config, checkpoint.names()).ropes
    assert rope.scaling == {
        "rope_type": "longrope",
        "short_factor": (2.0,) * 32,
        "long_factor": (4.0,) * 32,
        "original_max_position_embeddings": 512.0,
        "attention_factor": 1.25,
    }


def test_longrope_without_its_factors_is_refused(open_gguf):
    with pytest.raises(UnsupportedModel, match="'longrope', without the tensors"):
        open_gguf("phi3", **{"rope.scaling.type": "longrope", "rope.scaling.factor": 32.0})


def test_a_yarn_attention_factor_multiplies_yarns_own(open_gguf):
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024}
    scaling = open_gguf("qwen2", **yarn, **{"rope.scaling.attn_factor": 0.5}).config["rope_scaling"]
    assert scaling["attention_factor"] == pytest.approx(0.5 * (0.1 * math.log(4) + 1))


@pytest.mark.parametrize(("architecture", "num_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_attention_by_hidden_size(architecture, num_layers, open_gguf):
    widths = {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 8}
    large = open_gguf(architecture, **widths, block_count=num_layers)
    assert large.config["query_pre_attn_scalar"] == 64
    assert open_gguf(architecture, **widths).config["query_pre_attn_scalar"] == 32


def test_counts_that_differ_from_layer_to_layer_are_refused(open_gguf):
    assert open_gguf(**{"attention.head_count_kv": [1, 1]}).config["num_key_value_heads"] == 1
    with pytest.raises(UnsupportedModel, match=r"llama\.attention\.head_count_kv differs from layer to layer"):
        open_gguf(**{"attention.head_count_kv": [1, 2]})


def test_a_missing_number_is_named(open_gguf, write_gguf, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", "llama", {}, {"token_embd.weight": np.zeros((4, 8), np.float32)})
    with pytest.raises(UnsupportedModel, match=r"llama\.embedding_length is None; a number is needed"):
        open_checkpoint(file)


def test_a_missing_tensor_and_a_wrong_shape_are_named(open_gguf):
    checkpoint = open_gguf(tensors={"output_norm.weight": np.zeros(64, np.float32)})
    with pytest.raises(CorruptWeights, match=r"lacks the tensor model\.layers\.0\.mlp\.up_proj\.weight"):
        checkpoint.matrix(MatrixPart(name="model.layers.0.mlp.up_proj.weight", rows=64), 64)
    with pytest.raises(CorruptWeights, match=r"output_norm\.weight.*\[64\] where the config asks for \[65\]"):
        checkpoint.vector(BiasPart(name="model.norm.weight", rows=65))


def test_tensors_without_a_place_keep_their_gguf_name(open_gguf):
    checkpoint = open_gguf(tensors={"blk.0.surprise.weight": np.zeros((2, 2), np.float32)})
    assert "blk.0.surprise.weight" in checkpoint.names()
