"""Tiny random models on disk: a LLaMA or GPT-2 folder with a byte tokenizer, made in milliseconds."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from pageport.text.token_bytes import byte_alphabet

BOS, EOS, PAD = 256, 257, 258
VOCAB_SIZE = 259

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def write_tiny_llama(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a two-layer LLaMA of random float32 weights; ``overrides`` change its config.

    ``sliding_window`` in ``overrides`` makes it a Mistral. Returns ``folder``.
    """
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if overrides.get("sliding_window") else "LlamaForCausalLM"],
        "model_type": "mistral" if overrides.get("sliding_window") else "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **overrides,
    }
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (heads * size, hidden),
            prefix + "self_attn.k_proj.weight": (kv_heads * size, hidden),
            prefix + "self_attn.v_proj.weight": (kv_heads * size, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, heads * size),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return _write(folder, config, shapes, seed)


def write_tiny_gpt2(folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a two-layer GPT-2 of random float32 weights; ``overrides`` change its config. Returns ``folder``."""
    config: dict[str, Any] = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": VOCAB_SIZE,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 128,
        "n_positions": 256,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "torch_dtype": "float32",
        **overrides,
    }
    hidden, inner = config["n_embd"], config["n_inner"]
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (VOCAB_SIZE, hidden),
        "transformer.wpe.weight": (config["n_positions"], hidden),
    }
    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}."
        for name, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, inner),
            ("mlp.c_proj", inner, hidden),
        ):
            shapes |= {f"{prefix}{name}.weight": (rows, columns), f"{prefix}{name}.bias": (columns,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{prefix}{name}.weight": (hidden,), f"{prefix}{name}.bias": (hidden,)}
    shapes |= {"transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    return _write(folder, config, shapes, seed)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token a byte, plus <bos>, <eos> and <pad>."""
    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in byte_alphabet().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<bos>", "<eos>", "<pad>")])
    return tokenizer


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": CHAT_TEMPLATE}))
    return folder


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return noise * 0.1 + (0.0 if name.endswith("bias") else 1.0)
    # Large enough for logits that differ clearly from token to token, whatever the width.
    if "wte" in name:
        return noise * math.sqrt(min(1.0, 32 / shape[-1]))
    return noise * (1.0 if "embed" in name else 1.5 * shape[-1] ** -0.5)
