"""Phi 3, 3.5 and 4: LLaMA with fused qkv and gate_up, partial rotary embedding, longrope."""

from pageport.models.architectures._config import Config, activation, integer, optional_integer
from pageport.models.architectures._parts import Heads, heads, layer_module, llama_decoder, llama_layer, projection
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.spec import AttentionSpec, DecoderSpec, MLPSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``Phi3ForCausalLM``."""
    split = heads(config)
    # Early releases call their longrope "su" or "yarn".
    rope = rope_spec(config, split.head_size, aliases={"su": "longrope", "yarn": "longrope"})
    layers = [
        llama_layer(config, index, _attention(config, layer_module(index), split), _mlp(config, layer_module(index)))
        for index in range(integer(config, "num_hidden_layers"))
    ]
    return llama_decoder(config, names, layers=layers, ropes=(rope,), max_positions=context_length(rope))


def _attention(config: Config, module: str, split: Heads) -> AttentionSpec:
    hidden_size = integer(config, "hidden_size")
    return AttentionSpec(
        num_heads=split.num_heads,
        num_kv_heads=split.num_kv_heads,
        head_size=split.head_size,
        qkv=projection(hidden_size, (f"{module}.self_attn.qkv_proj", split.query_size + 2 * split.kv_size)),
        output=projection(split.query_size, (f"{module}.self_attn.o_proj", hidden_size)),
        scale=split.head_size**-0.5,
        rope=0,
        sliding_window=optional_integer(config, "sliding_window"),
    )


def _mlp(config: Config, module: str) -> MLPSpec:
    hidden_size = integer(config, "hidden_size")
    width = integer(config, "intermediate_size")
    return MLPSpec(
        up=projection(hidden_size, (f"{module}.mlp.gate_up_proj", 2 * width)),
        down=projection(width, (f"{module}.mlp.down_proj", hidden_size)),
        activation=activation(config, "hidden_act", "silu"),
        gated=True,
    )
