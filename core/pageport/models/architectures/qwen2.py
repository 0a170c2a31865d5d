"""Qwen 2 and 2.5: LLaMA with biases on q, k and v, and optionally a window in the upper layers."""

from pageport.models.architectures._config import Config, integer, layer_windows, optional_integer
from pageport.models.architectures._parts import attention, gated_mlp, heads, layer_module, llama_decoder, llama_layer
from pageport.models.architectures._rope_config import context_length, rope_spec
from pageport.models.spec import DecoderSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``Qwen2ForCausalLM``."""
    split = heads(config)
    rope = rope_spec(config, split.head_size)
    layers = [
        llama_layer(
            config,
            index,
            attention(config, f"{layer_module(index)}.self_attn", split, sliding_window=window, qkv_bias=True),
            gated_mlp(config, f"{layer_module(index)}.mlp"),
        )
        for index, window in enumerate(qwen_windows(config))
    ]
    return llama_decoder(config, names, layers=layers, ropes=(rope,), max_positions=context_length(rope))


def qwen_windows(config: Config) -> list[int | None]:
    """Return each layer's window: with ``use_sliding_window``, layers from ``max_window_layers`` on slide."""
    window = optional_integer(config, "sliding_window", 4096) if config.get("use_sliding_window") else None
    first_sliding = config.get("max_window_layers", 28)
    kinds = [
        "full_attention" if window is None or index < first_sliding else "sliding_attention"
        for index in range(integer(config, "num_hidden_layers"))
    ]
    return layer_windows(config, kinds, window)
