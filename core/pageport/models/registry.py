"""Which architecture each name in ``config.json`` means."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from pageport.errors import UnsupportedModel
from pageport.models.spec import DecoderSpec

# Architecture → module under ``architectures`` with its ``decoder_spec(config, names)``.
ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "GPT2LMHeadModel": "gpt2",
        "GPTNeoXForCausalLM": "gpt_neox",
        "Gemma2ForCausalLM": "gemma2",
        "Gemma3ForCausalLM": "gemma3",
        "GemmaForCausalLM": "gemma",
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Phi3ForCausalLM": "phi3",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
    }
)


def decoder_spec(config: Mapping[str, Any], names: frozenset[str]) -> DecoderSpec:
    """Describe the model of a ``config.json`` whose checkpoint holds tensors of these ``names``.

    Raises:
        UnsupportedModel: the architecture is unknown, also to plugins (the message lists the known ones), is quantised
            in a format the loaders do not read, or its config asks for something no op computes.
    """
    architecture = (config.get("architectures") or ["(none)"])[0]
    if architecture not in ARCHITECTURES:
        # Plugins are looked for only now: most models need none.
        from pageport.models.family_plugins import plugin_decoder_spec

        return plugin_decoder_spec(architecture, config, names)
    quantization = config.get("quantization_config")
    if quantization:
        raise UnsupportedModel(
            f"The checkpoint is quantised by {quantization.get('quant_method', 'an unnamed method')!r}, which is not "
            "supported yet. Use the unquantised checkpoint or a GGUF file."
        )
    module = import_module(f"pageport.models.architectures.{ARCHITECTURES[architecture]}")
    spec: DecoderSpec = module.decoder_spec(config, names)
    return spec
