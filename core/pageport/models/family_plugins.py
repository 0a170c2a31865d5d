"""Model families that other distributions bring (entry-point group ``pageport.model_families``)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pageport.errors import PageportError, UnsupportedModel
from pageport.models.registry import ARCHITECTURES
from pageport.models.spec import DecoderSpec
from pageport.plugins import PluginKind, described, find_plugins, hookspec, problem_of_instances, usable

# (config.json, names of the checkpoint's tensors) -> the model as data
DescribeDecoder = Callable[[Mapping[str, Any], frozenset[str]], DecoderSpec]


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """What ``config.json`` calls models of this family, and how to describe one."""

    architectures: tuple[str, ...]
    decoder_spec: DescribeDecoder


@hookspec
def pageport_model_families() -> list[ModelFamily]:
    """Return the families this plugin brings; import no torch here."""
    raise NotImplementedError


FAMILY_PLUGINS = PluginKind[ModelFamily](
    group="pageport.model_families",
    hook=pageport_model_families,
    noun="model family",
    problem=problem_of_instances(ModelFamily),
    names=lambda family: family.architectures,
    own_names=ARCHITECTURES,
)


def plugin_decoder_spec(architecture: str, config: Mapping[str, Any], names: frozenset[str]) -> DecoderSpec:
    """Have the plugin that knows an architecture describe a model.

    Raises:
        UnsupportedModel: none knows it (the message lists what is known, and which plugins are broken), or it failed.
    """
    entries = find_plugins(FAMILY_PLUGINS)
    entry = next((entry for entry in entries if entry.name == architecture and entry.value is not None), None)
    if entry is None or entry.value is None:
        known = ", ".join([*ARCHITECTURES, *usable(entries)])
        broken = "".join(f" {entry.name} ({entry.origin}): {entry.error}" for entry in entries if entry.error)
        raise UnsupportedModel(f"The architecture {architecture} is not supported. Supported: {known}.{broken}")
    try:
        return entry.value.decoder_spec(config, names)
    except PageportError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"The model family {architecture} of {entry.origin} cannot describe this model: {described(error)}."
        ) from error
