"""Mistral: LLaMA whose layers all slide, up to version 0.1; later ones have ``sliding_window: null``."""

from pageport.models.architectures import llama
from pageport.models.architectures._config import Config, optional_integer
from pageport.models.spec import DecoderSpec


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``MistralForCausalLM``."""
    return llama.decoder_spec(config, names, sliding_window=optional_integer(config, "sliding_window", 4096))
