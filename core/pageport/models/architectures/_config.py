"""Typed reading of a config.json."""

from collections.abc import Mapping
from typing import Any

from pageport.errors import UnsupportedModel
from pageport.models.spec import Activation

Config = Mapping[str, Any]


def integer(config: Config, key: str, default: int | None = None) -> int:
    """Return a positive integer; null counts as absent.

    Raises:
        UnsupportedModel: absent without a default, or something else.
    """
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UnsupportedModel(f"The model's config has {key} = {value!r}; a positive integer is needed.")
    return value


def number(config: Config, key: str, default: float | None = None) -> float:
    """Return a number; null counts as absent.

    Raises:
        UnsupportedModel: absent without a default, or something else.
    """
    value = config.get(key)
    if value is None:
        value = default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnsupportedModel(f"The model's config has {key} = {value!r}; a number is needed.")
    return float(value)


def optional_number(config: Config, key: str, default: float | None = None) -> float | None:
    """Return a number, or None where the config says null; ``default`` where it says nothing."""
    return None if config.get(key, default) is None else number(config, key, default)


def optional_integer(config: Config, key: str, default: int | None = None) -> int | None:
    """Return a positive integer, or None where the config says null; ``default`` where it says nothing."""
    return None if config.get(key, default) is None else integer(config, key, default)


def activation(config: Config, key: str, default: str | None = None) -> Activation:
    """Return the activation a config names; transformers knows the tanh form of gelu under three names.

    Raises:
        UnsupportedModel: an activation no op computes.
    """
    known: dict[Any, Activation] = {
        "silu": "silu",
        "swish": "silu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
    }
    name = config.get(key) or default
    if name not in known:
        raise UnsupportedModel(f"The model's config has {key} = {name!r}. Known: {', '.join(known)}.")
    return known[name]


def layer_windows(config: Config, default_types: list[str], window: int | None) -> list[int | None]:
    """Return each layer's sliding window from the config's ``layer_types``, or from the default ones without it.

    Raises:
        UnsupportedModel: a layer type that is neither full nor sliding attention, or not one a layer.
    """
    num_layers = integer(config, "num_hidden_layers")
    types = config.get("layer_types") or default_types
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown or len(types) != num_layers:
        raise UnsupportedModel(
            f"The model's config has layer_types {types!r} for {num_layers} layers; each must be full_attention or "
            "sliding_attention."
        )
    if "sliding_attention" in types and window is None:
        raise UnsupportedModel("The model's config has sliding_attention layers but no sliding_window.")
    return [window if kind == "sliding_attention" else None for kind in types]
