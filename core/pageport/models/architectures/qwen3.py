"""Qwen 3: norms over each head's queries and keys before rope, heads as wide as the config says."""

from pageport.models.architectures._config import Config
from pageport.models.architectures._parts import (
    attention,
    gated_mlp,
    heads,
    layer_module,
    llama_decoder,
    llama_layer,
    rms_norm,
)
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.architectures.qwen2 import qwen_windows
from pageport.models.spec import DecoderSpec, LayerSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``Qwen3ForCausalLM``."""
    rope = rope_spec(config, heads(config, default_head_size=128).head_size)
    layers = [_layer(config, index, window) for index, window in enumerate(qwen_windows(config))]
    return llama_decoder(config, names, layers=layers, ropes=(rope,), max_positions=context_length(rope))


def _layer(config: Config, index: int, window: int | None) -> LayerSpec:
    split = heads(config, default_head_size=128)
    module = f"{layer_module(index)}.self_attn"
    has_bias = bool(config.get("attention_bias"))
    return llama_layer(
        config,
        index,
        attention(
            config,
            module,
            split,
            sliding_window=window,
            qkv_bias=has_bias,
            output_bias=has_bias,
            q_norm=rms_norm(config, f"{module}.q_norm", split.head_size),
            k_norm=rms_norm(config, f"{module}.k_norm", split.head_size),
        ),
        gated_mlp(config, f"{layer_module(index)}.mlp"),
    )
