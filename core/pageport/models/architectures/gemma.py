"""Gemma 1: LLaMA with (1 + w) norms, an embedding scaled by sqrt(hidden), gelu, and heads 256 wide."""

from collections.abc import Sequence

from pageport.models.architectures._config import Config, integer
from pageport.models.architectures._parts import (
    Heads,
    attention,
    gated_mlp,
    heads,
    layer_module,
    llama_decoder,
    rms_norm,
)
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.spec import DecoderSpec, LayerSpec, RopeSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``GemmaForCausalLM``."""
    if config.get("hidden_act") in (None, "gelu"):
        # The first releases say "gelu" and mean its tanh form.
        config = {**config, "hidden_act": "gelu_pytorch_tanh"}
    rope = rope_spec(config, gemma_heads(config).head_size)
    layers = [_layer(config, index) for index in range(integer(config, "num_hidden_layers"))]
    return gemma_decoder(config, names, layers=layers, ropes=(rope,), max_positions=context_length(rope))


def gemma_heads(config: Config) -> Heads:
    """Read the heads, 256 features wide unless the config says else."""
    return heads(config, default_head_size=256)


def gemma_decoder(
    config: Config,
    names: frozenset[str],
    *,
    layers: Sequence[LayerSpec],
    ropes: tuple[RopeSpec, ...],
    max_positions: int,
    logit_softcap: float | None = None,
) -> DecoderSpec:
    """Describe what is around the layers of a Gemma of any version."""
    return llama_decoder(
        config,
        names,
        layers=layers,
        ropes=ropes,
        max_positions=max_positions,
        tied_by_default=True,
        unit_offset=True,
        embedding_scale=float(integer(config, "hidden_size") ** 0.5),
        logit_softcap=logit_softcap,
    )


def _layer(config: Config, index: int) -> LayerSpec:
    module = layer_module(index)
    has_bias = bool(config.get("attention_bias"))
    return LayerSpec(
        attention_norm=rms_norm(config, f"{module}.input_layernorm", unit_offset=True),
        attention=attention(
            config, f"{module}.self_attn", gemma_heads(config), qkv_bias=has_bias, output_bias=has_bias
        ),
        mlp_norm=rms_norm(config, f"{module}.post_attention_layernorm", unit_offset=True),
        mlp=gated_mlp(config, f"{module}.mlp"),
    )
