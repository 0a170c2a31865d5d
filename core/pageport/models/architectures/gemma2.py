"""Gemma 2: (1 + w) norms before and after attention and MLP, soft caps, local and global layers in turn."""

from pageport.models.architectures._config import (
    Config,
    integer,
    layer_windows,
    number,
    optional_integer,
    optional_number,
)
from pageport.models.architectures._parts import attention, gated_mlp, layer_module, rms_norm
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.architectures.gemma import gemma_decoder, gemma_heads
from pageport.models.spec import DecoderSpec, LayerSpec, NormSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``Gemma2ForCausalLM``."""
    rope = rope_spec(config, gemma_heads(config).head_size)
    softcap = optional_number(config, "attn_logit_softcapping", 50.0)
    layers = [
        four_norm_layer(config, index, window=window, softcap=softcap) for index, window in enumerate(_windows(config))
    ]
    return gemma_decoder(
        config,
        names,
        layers=layers,
        ropes=(rope,),
        max_positions=context_length(rope),
        logit_softcap=optional_number(config, "final_logit_softcapping", 30.0),
    )


def four_norm_layer(
    config: Config,
    index: int,
    *,
    window: int | None,
    softcap: float | None,
    rope: int = 0,
    q_norm: NormSpec | None = None,
    k_norm: NormSpec | None = None,
) -> LayerSpec:
    """Describe a layer whose attention and MLP outputs are normed before they join the residual."""
    module = layer_module(index)
    has_bias = bool(config.get("attention_bias"))

    def norm(name: str) -> NormSpec:
        return rms_norm(config, f"{module}.{name}", unit_offset=True)

    return LayerSpec(
        attention_norm=norm("input_layernorm"),
        attention=attention(
            config,
            f"{module}.self_attn",
            gemma_heads(config),
            rope=rope,
            sliding_window=window,
            qkv_bias=has_bias,
            output_bias=has_bias,
            scale=number(config, "query_pre_attn_scalar", 256.0) ** -0.5,
            softcap=softcap,
            q_norm=q_norm,
            k_norm=k_norm,
        ),
        attention_output_norm=norm("post_attention_layernorm"),
        mlp_norm=norm("pre_feedforward_layernorm"),
        mlp=gated_mlp(config, f"{module}.mlp", key="hidden_activation", default="gelu_pytorch_tanh"),
        mlp_output_norm=norm("post_feedforward_layernorm"),
    )


def _windows(config: Config) -> list[int | None]:
    kinds = [
        "full_attention" if index % 2 else "sliding_attention" for index in range(integer(config, "num_hidden_layers"))
    ]
    return layer_windows(config, kinds, optional_integer(config, "sliding_window", 4096))
