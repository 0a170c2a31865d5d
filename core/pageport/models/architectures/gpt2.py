"""GPT-2: learned positions, layer norms, biases everywhere, matrices stored as [in, out] (Conv1D)."""

from pageport.models.architectures._config import Config, activation, integer, number
from pageport.models.architectures._parts import layer_norm, output_head
from pageport.models.spec import (
    AttentionSpec,
    BiasPart,
    DecoderSpec,
    LayerSpec,
    MatrixPart,
    MLPSpec,
    ProjectionSpec,
)


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``GPT2LMHeadModel``, stored with or without the prefix ``transformer.``."""
    hidden_size = integer(config, "n_embd")
    vocab_size = integer(config, "vocab_size")
    max_positions = integer(config, "n_positions", 1024)
    prefix = "transformer." if "transformer.wte.weight" in names else ""
    return DecoderSpec(
        architecture=config["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        max_positions=max_positions,
        embedding=MatrixPart(name=f"{prefix}wte.weight", rows=vocab_size),
        position_embedding=MatrixPart(name=f"{prefix}wpe.weight", rows=max_positions),
        layers=tuple(_layer(config, f"{prefix}h.{index}", index) for index in range(integer(config, "n_layer"))),
        final_norm=layer_norm(f"{prefix}ln_f", hidden_size, _epsilon(config)),
        lm_head=output_head({**config, "hidden_size": hidden_size}, names, "lm_head", tied_by_default=True),
        # The causal mask, stored as buffers by old versions.
        ignored_tensors=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
    )


def _layer(config: Config, module: str, index: int) -> LayerSpec:
    hidden_size = integer(config, "n_embd")
    width = integer(config, "n_inner", 4 * hidden_size)
    return LayerSpec(
        attention_norm=layer_norm(f"{module}.ln_1", hidden_size, _epsilon(config)),
        attention=_attention(config, f"{module}.attn", index),
        mlp_norm=layer_norm(f"{module}.ln_2", hidden_size, _epsilon(config)),
        mlp=MLPSpec(
            up=_conv1d(f"{module}.mlp.c_fc", hidden_size, width),
            down=_conv1d(f"{module}.mlp.c_proj", width, hidden_size),
            activation=activation(config, "activation_function", "gelu_new"),
            gated=False,
        ),
    )


def _attention(config: Config, module: str, index: int) -> AttentionSpec:
    hidden_size = integer(config, "n_embd")
    num_heads = integer(config, "n_head")
    head_size = hidden_size // num_heads
    scale = head_size**-0.5 if config.get("scale_attn_weights", True) else 1.0
    if config.get("scale_attn_by_inverse_layer_idx"):
        scale /= index + 1
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=head_size,
        qkv=_conv1d(f"{module}.c_attn", hidden_size, 3 * hidden_size),
        output=_conv1d(f"{module}.c_proj", hidden_size, hidden_size),
        scale=scale,
    )


def _conv1d(module: str, in_features: int, out_features: int) -> ProjectionSpec:
    return ProjectionSpec(
        parts=(MatrixPart(name=f"{module}.weight", rows=out_features, transposed=True),),
        in_features=in_features,
        biases=(BiasPart(name=f"{module}.bias", rows=out_features),),
    )


def _epsilon(config: Config) -> float:
    return number(config, "layer_norm_epsilon", 1e-5)
