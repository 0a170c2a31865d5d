"""``random_llama``: a model of transformers with random weights, of the shape of LLaMA 3 8B, or tiny for a dry run."""

from typing import Any

import torch
from part import Part
from transformers import LlamaConfig, LlamaForCausalLM

DRY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FULL: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
}


def random_llama(part: Part, attention: str = "sdpa") -> Any:
    """Make the model where it will run."""
    config = LlamaConfig(**(DRY if part.is_dry else FULL), max_position_embeddings=8192, attn_implementation=attention)
    dtype, before = torch.float32 if part.is_dry else torch.bfloat16, torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with part.torch_device:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
