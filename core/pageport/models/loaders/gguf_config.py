"""A GGUF file's metadata in the words of transformers' config.json and generation_config.json.

Where llama.cpp knows a number only from a model's size, so does this file, and says so.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pageport.errors import UnsupportedModel
from pageport.models.gguf_metadata import GgufArray
from pageport.models.gguf_tokens import CONTROL, END_KEYS, TURN_ENDS, USER_DEFINED
from pageport.models.loaders.gguf_architecture import GgufArchitecture
from pageport.models.loaders.gguf_header import GgufHeader

# Layers of the models whose attention scale follows from hidden_size instead of head_dim: Gemma 2 and 3 of 27B.
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}

Config = dict[str, Any]
# Factors by which rotary frequencies are divided, by the name of the tensor that holds them.
Factors = Mapping[str, Sequence[float]]


class Metadata:
    """Typed reading of one file's metadata; keys are without the architecture's prefix."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.header = header
        self._prefix = architecture

    def get(self, key: str) -> Any:
        """Return a value, an array as a list, or None."""
        value = self.header.metadata.get(f"{self._prefix}.{key}")
        return value.values() if isinstance(value, GgufArray) else value

    def number(self, key: str, default: float | None = None) -> Any:
        """Return a number; of one number a layer, the one they all are.

        Raises:
            UnsupportedModel: absent without a default, or different in different layers.
        """
        value = self.get(key)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise UnsupportedModel(
                    f"{self.header.path}: {self._prefix}.{key} differs from layer to layer, which is not supported."
                )
            value = value[0]
        if value is None:
            value = default
        if not isinstance(value, int | float):
            raise UnsupportedModel(f"{self.header.path}: {self._prefix}.{key} is {value!r}; a number is needed.")
        return value


def model_config(header: GgufHeader, architecture: GgufArchitecture, names: frozenset[str], factors: Factors) -> Config:
    """Return what config.json would say; ``names`` are transformers' names of the stored tensors.

    Raises:
        UnsupportedModel: a number is missing, or the model is of a variety that is not supported.
    """
    metadata = Metadata(header, architecture.name)
    if metadata.get("expert_count"):
        raise UnsupportedModel(f"{header.path} is a mixture of experts, which is not supported.")
    makers: dict[str, Callable[[Metadata, Factors], Config]] = {
        "llama": _llama,
        "qwen2": _qwen,
        "qwen3": _qwen,
        "gemma": _llama_like,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
        "phi3": _phi3,
        "gpt2": _gpt2,
        "gptneox": _gpt_neox,
    }
    head = architecture.outer_modules[-1]
    embedding = header.tensors.get("token_embd.weight")
    config: Config = {
        "architectures": [architecture.model],
        "vocab_size": embedding.shape[0] if embedding else metadata.number("vocab_size"),
        "tie_word_embeddings": f"{head}.weight" not in names,
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _eos_token_ids(header),
        **makers[architecture.name](metadata, factors),
    }
    first_layer = f"{architecture.layer_prefix}0."
    config["attention_bias"] = any(
        f"{first_layer}{module}.bias" in names for module in ("self_attn.q_proj", "attention.query_key_value")
    )
    config["mlp_bias"] = f"{first_layer}mlp.gate_proj.bias" in names
    return config


def _eos_token_ids(header: GgufHeader) -> list[int]:
    """Return the ids that end a generation: end of text, of turn and of message, in this order, each once."""
    ids = [header.metadata[key] for key in END_KEYS if isinstance(header.metadata.get(key), int)]
    if "tokenizer.ggml.eot_token_id" not in header.metadata:
        ids += _end_of_turn_ids(header)
    return list(dict.fromkeys(ids))


def _end_of_turn_ids(header: GgufHeader) -> list[int]:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    types = header.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, GgufArray):
        return []
    found = [token for text in TURN_ENDS if (token := tokens.index(text)) is not None]
    if not found or not isinstance(types, GgufArray):
        return found
    types_by_token = types.values()
    return [token for token in found if types_by_token[token] in (CONTROL, USER_DEFINED)]


def _llama_like(metadata: Metadata, factors: Factors) -> Config:
    hidden_size = metadata.number("embedding_length")
    num_heads = metadata.number("attention.head_count")
    head_size = metadata.number("attention.key_length", hidden_size // num_heads)
    if metadata.number("attention.value_length", head_size) != head_size:
        raise UnsupportedModel(
            f"{metadata.header.path}: keys of {head_size} and values of {metadata.get('attention.value_length')} "
            "features a head are not supported."
        )
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv", num_heads),
        "head_dim": head_size,
        "intermediate_size": metadata.number("feed_forward_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.number("context_length"),
        "rope_theta": metadata.number("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(metadata, factors),
    }


def _llama(metadata: Metadata, factors: Factors) -> Config:
    config = _llama_like(metadata, factors)
    if metadata.get("attention.key_length") is None:
        config["head_dim"] = metadata.number("rope.dimension_count", config["head_dim"])
    window = metadata.get("attention.sliding_window")
    # Mistral is converted as llama; the first version, which slides, differs in nothing else.
    return {**config, "architectures": ["MistralForCausalLM"], "sliding_window": window} if window else config


def _qwen(metadata: Metadata, factors: Factors) -> Config:
    return {**_llama_like(metadata, factors), "use_sliding_window": False}


def _gemma2(metadata: Metadata, factors: Factors) -> Config:
    config = _llama_like(metadata, factors)
    return {
        **config,
        **_gemma_attention(metadata, config, "gemma2"),
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", 30.0),
    }


def _gemma3(metadata: Metadata, factors: Factors) -> Config:
    config = _llama_like(metadata, factors)
    return {
        **config,
        **_gemma_attention(metadata, config, "gemma3"),
        "rope_theta": metadata.number("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10_000.0),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
    }


def _gemma_attention(metadata: Metadata, config: Config, name: str) -> Config:
    num_layers, head_size = config["num_hidden_layers"], config["head_dim"]
    is_27b = num_layers == _GEMMA_27B_LAYERS[name]
    pattern = metadata.get("attention.sliding_window_pattern")
    attention: Config = {
        "sliding_window": metadata.number("attention.sliding_window"),
        "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if is_27b else head_size,
    }
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern[:num_layers]]
        attention["layer_types"] = kinds
    elif pattern is not None:
        kinds = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(num_layers)]
        attention["layer_types"] = kinds
    return attention


def _phi3(metadata: Metadata, factors: Factors) -> Config:
    config = _llama_like(metadata, factors)
    return {
        **config,
        "partial_rotary_factor": metadata.number("rope.dimension_count", config["head_dim"]) / config["head_dim"],
        "original_max_position_embeddings": metadata.number(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        ),
        "sliding_window": metadata.get("attention.sliding_window") or None,
    }


def _gpt2(metadata: Metadata, factors: Factors) -> Config:
    return {
        "n_embd": metadata.number("embedding_length"),
        "n_layer": metadata.number("block_count"),
        "n_head": metadata.number("attention.head_count"),
        "n_inner": metadata.number("feed_forward_length"),
        "n_positions": metadata.number("context_length"),
        "layer_norm_epsilon": metadata.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _gpt_neox(metadata: Metadata, factors: Factors) -> Config:
    hidden_size = metadata.number("embedding_length")
    num_heads = metadata.number("attention.head_count")
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": metadata.number("block_count"),
        "num_attention_heads": num_heads,
        "intermediate_size": metadata.number("feed_forward_length"),
        "layer_norm_eps": metadata.number("attention.layer_norm_epsilon"),
        "max_position_embeddings": metadata.number("context_length"),
        "rotary_pct": metadata.number("rope.dimension_count") / (hidden_size // num_heads),
        "rotary_emb_base": metadata.number("rope.freq_base", 10_000.0),
        "use_parallel_residual": bool(metadata.get("use_parallel_residual") in (True, None)),
        "hidden_act": "gelu",
        "rope_scaling": _rope_scaling(metadata, factors),
    }


def _rope_scaling(metadata: Metadata, factors: Factors) -> Config | None:
    if factors:
        return _longrope(metadata, factors)
    kind = metadata.get("rope.scaling.type") or "none"
    factor = metadata.get("rope.scaling.factor") or metadata.get("rope.scale_linear")
    if kind == "none" and factor is None:
        return None
    if kind in ("linear", "none"):
        return {"rope_type": "linear", "factor": float(factor or 1.0)}
    if kind == "yarn":
        return _yarn(metadata, float(factor or 1.0))
    raise UnsupportedModel(
        f"{metadata.header.path} scales its rotary embedding by {kind!r}, without the tensors that needs. "
        "Known: linear, yarn, and factors stored as tensors."
    )


def _longrope(metadata: Metadata, factors: Factors) -> Config:
    """Describe stored factors as the one type that takes them one by one.

    LLaMA 3.1's scaling reaches GGUF as one set of factors and no more; Phi 3's has a set for short prompts and one for
    long ones, and scales attention.
    """
    only = factors.get("rope_freqs.weight")
    context = metadata.number("context_length")
    scaling: Config = {
        "rope_type": "longrope",
        "short_factor": list(factors["rope_factors_short.weight"] if only is None else only),
        "long_factor": list(factors["rope_factors_long.weight"] if only is None else only),
        "original_max_position_embeddings": metadata.number("rope.scaling.original_context_length", context),
    }
    attention_factor = metadata.get("rope.scaling.attn_factor")
    if only is not None or attention_factor is not None:
        scaling["attention_factor"] = float(attention_factor or 1.0)
    return scaling


def _yarn(metadata: Metadata, factor: float) -> Config:
    scaling: Config = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": metadata.number("rope.scaling.original_context_length"),
    }
    optional = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    scaling |= {name: float(value) for name, key in optional.items() if (value := metadata.get(f"rope.scaling.{key}"))}
    attention_factor = metadata.get("rope.scaling.attn_factor")
    if attention_factor is not None and factor > 1:
        # llama.cpp multiplies it with yarn's own (arXiv:2309.00071, equation 22).
        scaling["attention_factor"] = float(attention_factor) * (0.1 * math.log(factor) + 1.0)
    return scaling
