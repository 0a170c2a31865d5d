"""Configs and what they are turned into."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pageport.errors import UnsupportedModel
from pageport.models.registry import ARCHITECTURES, decoder_spec
from pageport.models.spec import cache_groups

_NO_NAMES = frozenset()


@pytest.mark.parametrize("architectures", [["WhisperForConditionalGeneration"], [], None])
def test_unknown_architecture_lists_the_supported_ones(architectures):
    with pytest.raises(UnsupportedModel, match=r"Supported: .*LlamaForCausalLM.*Qwen3ForCausalLM"):
        decoder_spec({"architectures": architectures}, _NO_NAMES)


def test_quantised_checkpoints_are_refused_by_the_name_of_their_method():
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(UnsupportedModel, match="'gptq'"):
        decoder_spec(config, _NO_NAMES)


def test_every_registered_architecture_is_compared(compared_architectures):
    assert set(ARCHITECTURES) == compared_architectures


def test_architecture_files_import_no_torch():
    modules = ", ".join(f"pageport.models.architectures.{module}" for module in ARCHITECTURES.values())
    code = f"import sys, pageport.models.registry, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "hidden_size = None"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers = 'two'"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps = 'tiny'"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 7}, "rotates 7 of 7"),
    ],
)
def test_config_that_cannot_be_run_is_refused_with_the_value_seen(change, named, tiny_model):
    config = {**tiny_model("llama").checkpoint.config, **change}
    with pytest.raises(UnsupportedModel, match=named):
        decoder_spec(config, _NO_NAMES)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": ["chunked_attention", "full_attention"]},
        {"layer_types": ["full_attention"]},
        {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False},
    ],
)
def test_layer_types_that_cannot_be_run_are_refused(change, tiny_model):
    config = {**tiny_model("qwen2").checkpoint.config, **change}
    with pytest.raises(UnsupportedModel, match="sliding"):
        decoder_spec(config, _NO_NAMES)


def test_bidirectional_gemma3_is_refused(tiny_model):
    config = {**tiny_model("gemma3").checkpoint.config, "use_bidirectional_attention": True}
    with pytest.raises(UnsupportedModel, match="both directions"):
        decoder_spec(config, _NO_NAMES)


def test_gpt2_context_is_capped_at_its_position_table(tiny_model):
    """ARC-11"""
    spec = tiny_model("gpt2-square").spec
    assert (spec.max_positions, spec.position_embedding.rows) == (160, 160)


def test_layers_are_grouped_by_window(tiny_model):
    groups = cache_groups(tiny_model("gemma3").spec)
    assert [(group.layers, group.sliding_window) for group in groups] == [((1,), None), ((0, 2), 16)]


OLD_CONFIGS = {
    # As published before transformers 5; each on top of the tiny fields.
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "head_dim": 24,
            "num_hidden_layers": 4,
            "sliding_window": 16,
            "sliding_window_pattern": 2,
            "rope_theta": 50_000.0,
            "rope_local_base_freq": 500.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "gemma3-unscaled": (
        "Gemma3ForCausalLM",
        {"head_dim": 24, "sliding_window": 16, "sliding_window_pattern": 2, "rope_theta": 5e4, "rope_scaling": None},
    ),
    "phi3-su": (
        "Phi3ForCausalLM",
        {
            "rope_scaling": {
                "type": "su",
                "short_factor": [1.0] * 6,
                "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "gpt-neox": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 64, "rotary_pct": 0.5, "rotary_emb_base": 500, "num_key_value_heads": 4},
    ),
    "llama": ("LlamaForCausalLM", {"rope_theta": 500.0}),
    "gemma-gelu": ("GemmaForCausalLM", {"head_dim": 24, "hidden_act": "gelu", "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("name", OLD_CONFIGS)
def test_old_configs_mean_what_transformers_reads_in_them(name, make_tiny, paged, tokens):
    architecture, fields = OLD_CONFIGS[name]
    tiny, prompt = make_tiny(architecture, **fields), tokens(70)
    config = {
        key: value for key, value in tiny.checkpoint.config.items() if key not in ("rope_parameters", "layer_types")
    }
    tiny = replace(tiny, checkpoint=replace(tiny.checkpoint, config={**config, **fields}))
    model = paged(tiny, max_model_len=70)
    logits = model.run(prompt, model.new_blocks(70))
    torch.testing.assert_close(logits, tiny.reference_logits(prompt), atol=1e-4, rtol=0.0)
