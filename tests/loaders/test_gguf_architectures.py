"""A GGUF file of any architecture is presented as the Hugging Face folder it was converted from."""

import numpy as np
import pytest
import torch

from pageport.errors import UnsupportedModel
from pageport.models.loaders import open_checkpoint
from pageport.models.registry import decoder_spec
from pageport.models.spec import BiasPart

_LLAMA = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 2.0**-20,
    "rope_theta": 50_000.0,
    "tie_word_embeddings": True,
}
_LLAMA_METADATA = {
    "embedding_length": 32,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "feed_forward_length": 64,
    "context_length": 128,
    "attention.layer_norm_rms_epsilon": 2.0**-20,
    "rope.freq_base": 50_000.0,
    "rope.dimension_count": 8,
}
_WIDE = {"attention.key_length": 24, "attention.value_length": 24}
_GEMMA = {**_LLAMA, "head_dim": 24}
_GEMMA_METADATA = {**_LLAMA_METADATA, **_WIDE}
_WINDOWED = {"sliding_window": 48, "query_pre_attn_scalar": 24}
_NEOX = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "layer_norm_eps": 2.0**-17,
    "rotary_pct": 0.5,
    "tie_word_embeddings": False,
}
_NEOX_METADATA = {
    "embedding_length": 32,
    "block_count": 2,
    "attention.head_count": 4,
    "feed_forward_length": 64,
    "context_length": 128,
    "attention.layer_norm_epsilon": 2.0**-17,
    "rope.dimension_count": 4,
    "use_parallel_residual": True,
}
_GPT2 = {
    "vocab_size": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 32,  # square: a missing or doubled transposition is not caught by shapes
    "n_positions": 128,
    "layer_norm_epsilon": 2.0**-17,
}
_GPT2_METADATA = {
    "embedding_length": 32,
    "block_count": 2,
    "attention.head_count": 4,
    "feed_forward_length": 32,
    "context_length": 128,
    "attention.layer_norm_epsilon": 2.0**-17,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_YARN_METADATA = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}

# Name → GGUF architecture, transformers' class, its config, the file's metadata, the head stored (None: tied).
MODELS = {
    "llama": ("llama", "LlamaForCausalLM", _LLAMA, _LLAMA_METADATA, None),
    "llama-untied-biased": (
        "llama",
        "LlamaForCausalLM",
        {**_LLAMA, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
        _LLAMA_METADATA,
        "lm_head",
    ),
    "llama-wide-heads": ("llama", "LlamaForCausalLM", {**_LLAMA, "head_dim": 24}, {**_LLAMA_METADATA, **_WIDE}, None),
    "llama-linear": (
        "llama",
        "LlamaForCausalLM",
        {**_LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {**_LLAMA_METADATA, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        None,
    ),
    "mistral-window": (
        "llama",
        "MistralForCausalLM",
        {**_LLAMA, "sliding_window": 48},
        {**_LLAMA_METADATA, "attention.sliding_window": 48},
        None,
    ),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", _LLAMA, _LLAMA_METADATA, None),
    "qwen2-yarn": (
        "qwen2",
        "Qwen2ForCausalLM",
        {**_LLAMA, "rope_scaling": _YARN},
        {**_LLAMA_METADATA, **_YARN_METADATA},
        None,
    ),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", {**_LLAMA, "head_dim": 24}, {**_LLAMA_METADATA, **_WIDE}, None),
    "gemma": ("gemma", "GemmaForCausalLM", _GEMMA, _GEMMA_METADATA, None),
    "gemma2": (
        "gemma2",
        "Gemma2ForCausalLM",
        {**_GEMMA, **_WINDOWED, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        {
            **_GEMMA_METADATA,
            "attention.sliding_window": 48,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
        None,
    ),
    "gemma3": (
        "gemma3",
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            **_WINDOWED,
            "num_hidden_layers": 7,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "rope_local_base_freq": 10_000.0,
        },
        {
            **_GEMMA_METADATA,
            "block_count": 7,
            "attention.sliding_window": 48,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        None,
    ),
    "gemma3-pattern": (
        "gemma3",
        "Gemma3ForCausalLM",
        {**_GEMMA, **_WINDOWED, "layer_types": ["full_attention", "sliding_attention"]},
        {
            **_GEMMA_METADATA,
            "attention.sliding_window": 48,
            "attention.sliding_window_pattern": [False, True],
        },
        None,
    ),
    "phi3": (
        "phi3",
        "Phi3ForCausalLM",
        {**_LLAMA, "sliding_window": 100, "partial_rotary_factor": 0.5, "tie_word_embeddings": False},
        {**_LLAMA_METADATA, "rope.dimension_count": 4, "attention.sliding_window": 100},
        "lm_head",
    ),
    "gpt2": ("gpt2", "GPT2LMHeadModel", _GPT2, _GPT2_METADATA, None),
    "gpt2-head-stored": (
        "gpt2",
        "GPT2LMHeadModel",
        {**_GPT2, "tie_word_embeddings": False},
        _GPT2_METADATA,
        "lm_head",
    ),
    "gptneox": ("gptneox", "GPTNeoXForCausalLM", _NEOX, _NEOX_METADATA, "embed_out"),
    "gptneox-sequential": (
        "gptneox",
        "GPTNeoXForCausalLM",
        {**_NEOX, "use_parallel_residual": False},
        {**_NEOX_METADATA, "use_parallel_residual": False},
        "embed_out",
    ),
}


@pytest.fixture(params=MODELS)
def pair(request, tiny, convert, write_gguf, save_folder, tmp_path):
    """A model's GGUF file and its folder, opened."""
    architecture, name, config, metadata, head = MODELS[request.param]
    model = tiny({**config, "architectures": [name]}, head)
    file = write_gguf(tmp_path / "model.gguf", architecture, metadata, convert(architecture, model))
    folder = save_folder(tmp_path / "folder", model.config, model.tensors)
    return open_checkpoint(file), open_checkpoint(folder)


def test_the_config_describes_the_same_model(pair):
    from_gguf, from_folder = pair
    assert decoder_spec(from_gguf.config, from_gguf.names()) == decoder_spec(from_folder.config, from_folder.names())


def test_names_and_shapes_are_those_of_transformers(pair):
    from_gguf, from_folder = pair
    assert from_gguf.names() == from_folder.names()
    for name in from_folder.names():
        assert from_gguf.shape(name) == from_folder.shape(name), name


def test_every_vector_has_the_values_transformers_has(pair):
    """ARC-03: norm weights of the Gemma family lose the one that the converter added."""
    from_gguf, from_folder = pair
    vectors = [name for name in from_folder.names() if len(from_folder.shape(name)) == 1]
    for name in vectors:
        part = BiasPart(name=name, rows=from_folder.shape(name)[0])
        torch.testing.assert_close(from_gguf.vector(part), from_folder.vector(part), atol=1e-6, rtol=0.0)


def test_every_projection_is_read_as_the_model_wants_it(pair):
    """GGU-01, ARC-11: orientation, row order, q and k un-permuted only where the converter permutes."""
    from_gguf, from_folder = pair
    spec = decoder_spec(from_folder.config, from_folder.names())
    for layer in spec.layers:
        for projection in (layer.attention.qkv, layer.attention.output, layer.mlp.up, layer.mlp.down):
            for part in projection.parts:
                stored, expected = (c.matrix(part, projection.in_features).read()["weight"] for c in pair)
                assert torch.equal(stored, expected), part.name
            for bias in projection.biases:
                assert torch.equal(from_gguf.vector(bias), from_folder.vector(bias)), bias.name


def test_an_unknown_architecture_lists_the_known_ones(write_gguf, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", "rwkv7", {}, {"token_embd.weight": np.zeros((4, 8), np.float32)})
    with pytest.raises(UnsupportedModel, match=r"'rwkv7'.*llama, qwen2, qwen3, gemma, gemma2, gemma3, phi3, gpt2"):
        open_checkpoint(file)


def test_a_mixture_of_experts_is_refused(write_gguf, tmp_path):
    file = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        {**_LLAMA_METADATA, "expert_count": 8},
        {"token_embd.weight": np.zeros((4, 32), np.float32)},
    )
    with pytest.raises(UnsupportedModel, match="mixture of experts"):
        open_checkpoint(file)
