"""Tiny models with random weights, as a Hugging Face folder and as the GGUF file llama.cpp's converter would write."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pageport.models.registry import decoder_spec
from pageport.models.spec import DecoderSpec, LayerSpec, NormSpec, ProjectionSpec

# The converter's names, written down here so that a wrong map in the product is seen.
_LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA2_NAMES = {
    **_LLAMA_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT2_NAMES = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GPT_NEOX_NAMES = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
GGUF_NAMES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "gemma", "phi3"), _LLAMA_NAMES),
    **dict.fromkeys(("gemma2", "gemma3"), _GEMMA2_NAMES),
    "gpt2": _GPT2_NAMES,
    "gptneox": _GPT_NEOX_NAMES,
}


@dataclass
class TinyModel:
    """A config, the description it leads to, and random tensors under transformers' names."""

    config: dict[str, Any]
    spec: DecoderSpec
    tensors: dict[str, Tensor]


@pytest.fixture
def tiny() -> Callable[..., TinyModel]:
    def make(config: Mapping[str, Any], head: str | None = None) -> TinyModel:
        # GPT-2's names have their prefix where this one has it.
        names = frozenset(["transformer.wte.weight", *([f"{head}.weight"] if head else [])])
        spec = decoder_spec(config, names)
        generator = torch.Generator().manual_seed(7)
        tensors = {name: torch.randn(shape, generator=generator) for name, shape in _shapes(spec)}
        return TinyModel(dict(config), spec, tensors)

    return make


@pytest.fixture
def save_folder() -> Callable[..., Path]:
    def save(folder: Path, config: Mapping[str, Any], *shards: Mapping[str, Tensor]) -> Path:
        """Write a folder: one shard as model.safetensors, several with an index."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        if len(shards) == 1:
            save_file({name: tensor.clone() for name, tensor in shards[0].items()}, folder / "model.safetensors")
            return folder
        weight_map = {}
        for number, shard in enumerate(shards, start=1):
            file = f"model-{number:05}-of-{len(shards):05}.safetensors"
            save_file({name: tensor.clone() for name, tensor in shard.items()}, folder / file)
            weight_map |= dict.fromkeys(shard, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return folder

    return save


@pytest.fixture
def write_gguf() -> Callable[..., Path]:
    def write(
        path: Path,
        architecture: str,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Tensor | np.ndarray],
        types: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    ) -> Path:
        """Write tensors under GGUF's names; values of ``types`` make blocks of float tensors."""
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in metadata.items():
            name = key if key.startswith(("tokenizer.", "split.", "general.")) else f"{architecture}.{key}"
            _add(writer, name, value)
        for name, tensor in tensors.items():
            kind = (types or {}).get(name)
            values = np.asarray(tensor)
            if kind is None:
                writer.add_tensor(name, values)
            elif values.dtype == np.uint8:
                writer.add_tensor(name, values, raw_dtype=kind)
            else:
                writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def convert() -> Callable[..., dict[str, Tensor]]:
    def run(architecture: str, model: TinyModel) -> dict[str, Tensor]:
        """Store a model's tensors as the converter does: GGUF's names, rows, orientation and norms."""
        return {
            _gguf_name(architecture, name): _as_converted(architecture, model.config, name, tensor)
            for name, tensor in model.tensors.items()
        }

    return run


def _shapes(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield spec.embedding.name, (spec.embedding.rows, spec.hidden_size)
    if spec.position_embedding is not None:
        yield spec.position_embedding.name, (spec.position_embedding.rows, spec.hidden_size)
    for layer in spec.layers:
        for projection in (layer.attention.qkv, layer.attention.output, layer.mlp.up, layer.mlp.down):
            yield from _projection_shapes(projection)
        for norm in _norms(layer):
            yield from _norm_shapes(norm)
    yield from _norm_shapes(spec.final_norm)
    if spec.lm_head is not None:
        yield from _projection_shapes(spec.lm_head)


def _projection_shapes(projection: ProjectionSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part in projection.parts:
        shape = (part.rows, projection.in_features)
        yield part.name, shape[::-1] if part.transposed else shape
    for bias in projection.biases:
        yield bias.name, (bias.rows,)


def _norms(layer: LayerSpec) -> Sequence[NormSpec]:
    norms = (
        layer.attention_norm,
        layer.attention.q_norm,
        layer.attention.k_norm,
        layer.attention_output_norm,
        layer.mlp_norm,
        layer.mlp_output_norm,
    )
    return [norm for norm in norms if norm is not None]


def _norm_shapes(norm: NormSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield norm.weight, (norm.features,)
    if norm.bias is not None:
        yield norm.bias, (norm.features,)


def _gguf_name(architecture: str, name: str) -> str:
    module, _, kind = name.rpartition(".")
    names = GGUF_NAMES[architecture]
    if module in names:
        return f"{names[module]}.{kind}"
    layer, _, inner = (
        module.removeprefix("model.layers.")
        .removeprefix("transformer.h.")
        .removeprefix("gpt_neox.layers.")
        .partition(".")
    )
    return f"blk.{layer}.{names[inner]}.{kind}"


def _as_converted(architecture: str, config: Mapping[str, Any], name: str, tensor: Tensor) -> Tensor:
    if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        pairs = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return pairs.swapaxes(1, 2).reshape(tensor.shape)
    if architecture == "gptneox" and ".query_key_value." in name:
        heads = config["num_attention_heads"]
        by_head = tensor.reshape(heads, 3, tensor.shape[0] // heads // 3, *tensor.shape[1:])
        return torch.cat([by_head[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.t().contiguous()
    return tensor


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
