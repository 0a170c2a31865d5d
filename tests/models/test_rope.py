"""Rotary tables and the configs they are made from, against transformers."""

import pytest
import torch

from pageport.errors import UnsupportedModel
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.rope import rope_table
from pageport.models.spec import RopeSpec

_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
    "original_max_position_embeddings": 64,
}
# Under the name of the config's field, in its old and its new spelling.
SCALINGS = {
    "llama3": {"rope_scaling": {"rope_type": "llama3", **_LLAMA3}},
    "llama3-type": {"rope_scaling": {"type": "llama3", **_LLAMA3}},
    "llama3-both-keys": {"rope_scaling": {"type": "linear", "rope_type": "llama3", **_LLAMA3}},
    "llama3-parameters": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5_000.0, **_LLAMA3}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 64},
    "yarn": {"rope_scaling": _YARN},
    "yarn-factor": {"rope_scaling": {**_YARN, "attention_factor": 1.3}},
    "yarn-mscale": {"rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    "yarn-untruncated": {"rope_scaling": {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False}},
    "longrope": {"rope_scaling": {**_LONGROPE, "factor": 8.0}},
    "longrope-no-factor": {"rope_parameters": {**_LONGROPE, "rope_theta": 20_000.0}},
    "default": {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500.0},
    "null": {"rope_scaling": None, "rope_theta": 500.0},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_scaled_rope_gives_the_reference_logits(name, make_tiny, paged, tokens):
    """ARC-04: every type and spelling, at positions on both sides of the original length."""
    tiny, prompt = make_tiny("LlamaForCausalLM", **SCALINGS[name]), tokens(301)
    # Read as a checkpoint's author wrote it, not as transformers rewrites it.
    tiny.checkpoint.config = {**_without_rope(tiny.checkpoint.config), **SCALINGS[name]}
    model = paged(tiny, max_model_len=301)
    logits = model.run(prompt, model.new_blocks(301))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("name", [name for name in SCALINGS if name not in ("default", "null")])
def test_dropping_the_scaling_would_be_noticed(name, make_tiny, paged, tokens):
    tiny, prompt = make_tiny("LlamaForCausalLM", **SCALINGS[name]), tokens(301)
    tiny.checkpoint.config = {**_without_rope(tiny.checkpoint.config), "rope_theta": _base(SCALINGS[name])}
    model = paged(tiny, max_model_len=301)
    difference = model.run(prompt, model.new_blocks(301)) - tiny.reference_logits(prompt)
    assert difference.abs().max() > 0.01


@pytest.mark.parametrize("length", [64, 65])
def test_longrope_takes_its_factors_by_the_served_length(length, make_tiny, paged, tokens):
    tiny, prompt = make_tiny("Phi3ForCausalLM", rope_parameters=dict(_LONGROPE)), tokens(length)
    model = paged(tiny, max_model_len=length)
    logits = model.run(prompt, model.new_blocks(length))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_unknown_rope_type_is_refused_by_name(key):
    with pytest.raises(UnsupportedModel, match="'wormhole'"):
        rope_spec({"rope_scaling": {key: "wormhole", "factor": 2.0}, "max_position_embeddings": 64}, 16)


def test_unknown_rope_type_in_a_spec_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match="'wormhole'"):
        rope_table(RopeSpec(rotary_size=8, base=1e4, scaling={"rope_type": "wormhole"}), 4)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "linear"}, "factor = None"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor = None"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "long_factor = None"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "8 are needed"),
        ([1, 2], "a mapping is needed"),
    ],
)
def test_scaling_without_its_numbers_is_refused(scaling, named):
    with pytest.raises(UnsupportedModel, match=named):
        rope_spec({"rope_scaling": scaling, "max_position_embeddings": 64}, 16)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 64),
        ({"type": "linear", "factor": 4.0}, 256),
        ({"type": "dynamic", "factor": 2.0}, 128),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}, 64),
        ({"rope_type": "llama3", **_LLAMA3}, 64),
    ],
)
def test_context_length_counts_the_stretching(scaling, expected):
    assert context_length(rope_spec({"rope_scaling": scaling, "max_position_embeddings": 64}, 16)) == expected


def test_table_holds_cosines_then_sines():
    table = rope_table(RopeSpec(rotary_size=4, base=100.0), 3)
    expected = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.5403, 0.9950, 0.8415, 0.0998], [-0.4161, 0.9801, 0.9093, 0.1987]])
    torch.testing.assert_close(table, expected, atol=1e-4, rtol=0.0)


def _without_rope(config):
    return {key: value for key, value in config.items() if not key.startswith("rope_")}


def _base(scaling):
    return scaling.get("rope_parameters", {}).get("rope_theta", 10_000.0)
