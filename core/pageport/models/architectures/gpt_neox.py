"""GPT-NeoX and Pythia: parallel residual, partial rotary embedding, q, k and v interleaved by head."""

from pageport.models.architectures._config import Config, activation, integer, number
from pageport.models.architectures._parts import INVERSE_FREQUENCIES, heads, layer_norm, output_head, projection
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.spec import (
    AttentionSpec,
    BiasPart,
    DecoderSpec,
    LayerSpec,
    MatrixPart,
    MLPSpec,
    ProjectionSpec,
    RowOrder,
)


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``GPTNeoXForCausalLM``."""
    hidden_size = integer(config, "hidden_size")
    vocab_size = integer(config, "vocab_size")
    rope = rope_spec(
        config,
        heads(config).head_size,
        default_base=number(config, "rotary_emb_base", 10_000.0),
        default_rotary_share=number(config, "rotary_pct", 0.25),
    )
    # transformers 5 renamed the head; published checkpoints have the old name.
    head = "embed_out" if "embed_out.weight" in names else "lm_head"
    return DecoderSpec(
        architecture=config["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        max_positions=context_length(rope),
        embedding=MatrixPart(name="gpt_neox.embed_in.weight", rows=vocab_size),
        layers=tuple(_layer(config, index) for index in range(integer(config, "num_hidden_layers"))),
        final_norm=layer_norm("gpt_neox.final_layer_norm", hidden_size, _epsilon(config)),
        lm_head=output_head(config, names, head),
        ropes=(rope,),
        ignored_tensors=(INVERSE_FREQUENCIES, r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias"),
    )


def _layer(config: Config, index: int) -> LayerSpec:
    module = f"gpt_neox.layers.{index}"
    hidden_size = integer(config, "hidden_size")
    width = integer(config, "intermediate_size")
    return LayerSpec(
        attention_norm=layer_norm(f"{module}.input_layernorm", hidden_size, _epsilon(config)),
        attention=_attention(config, f"{module}.attention"),
        mlp_norm=layer_norm(f"{module}.post_attention_layernorm", hidden_size, _epsilon(config)),
        mlp=MLPSpec(
            up=projection(hidden_size, (f"{module}.mlp.dense_h_to_4h", width), bias=True),
            down=projection(width, (f"{module}.mlp.dense_4h_to_h", hidden_size), bias=True),
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
        ),
        residual="parallel" if config.get("use_parallel_residual", True) else "sequential",
    )


def _attention(config: Config, module: str) -> AttentionSpec:
    hidden_size = integer(config, "hidden_size")
    split = heads(config)
    has_bias = bool(config.get("attention_bias", True))
    # Stored as q, k, v of head 0, then of head 1, …
    order = RowOrder(shape=(split.num_heads, 3, split.head_size), axes=(1, 0, 2))
    name, rows = f"{module}.query_key_value", 3 * hidden_size
    return AttentionSpec(
        num_heads=split.num_heads,
        num_kv_heads=split.num_kv_heads,
        head_size=split.head_size,
        qkv=ProjectionSpec(
            parts=(MatrixPart(name=f"{name}.weight", rows=rows, row_order=order),),
            in_features=hidden_size,
            biases=(BiasPart(name=f"{name}.bias", rows=rows, row_order=order),) if has_bias else (),
        ),
        output=projection(hidden_size, (f"{module}.dense", hidden_size), bias=has_bias),
        scale=split.head_size**-0.5,
        rope=0,
    )


def _epsilon(config: Config) -> float:
    return number(config, "layer_norm_eps", 1e-5)
