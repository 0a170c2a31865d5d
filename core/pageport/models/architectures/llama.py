"""LLaMA 1 to 3 and models of their shape (SmolLM2, Yi, TinyLlama, …)."""

from pageport.models.architectures._config import Config, integer
from pageport.models.architectures._parts import attention, gated_mlp, heads, layer_module, llama_decoder, llama_layer
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.spec import DecoderSpec


def decoder_spec(config: Config, names: frozenset[str], sliding_window: int | None = None) -> DecoderSpec:
    """Describe ``LlamaForCausalLM``; with a window, every layer slides."""
    split = heads(config)
    rope = rope_spec(config, split.head_size)
    attention_bias = bool(config.get("attention_bias"))
    layers = [
        llama_layer(
            config,
            index,
            attention(
                config,
                f"{layer_module(index)}.self_attn",
                split,
                sliding_window=sliding_window,
                qkv_bias=attention_bias,
                output_bias=attention_bias,
            ),
            gated_mlp(config, f"{layer_module(index)}.mlp", bias=bool(config.get("mlp_bias"))),
        )
        for index in range(integer(config, "num_hidden_layers"))
    ]
    return llama_decoder(config, names, layers=layers, ropes=(rope,), max_positions=context_length(rope))
