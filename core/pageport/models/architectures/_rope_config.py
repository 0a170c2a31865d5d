"""The config's words about rotary embeddings, old and new, in one form.

Old: ``rope_theta``, ``partial_rotary_factor`` and ``rope_scaling`` with ``type`` or ``rope_type``. New (transformers
5): ``rope_parameters`` holds all of them, flat or once per layer type.
"""

from collections.abc import Mapping
from typing import Any

from pageport.errors import UnsupportedModel
from pageport.models.architectures._config import Config, integer, number
from pageport.models.rope_types import check_rope_type
from pageport.models.spec import RopeSpec

# Numbers each type cannot do without; ``original_max_position_embeddings`` is filled in below.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def rope_spec(
    config: Config,
    head_size: int,
    *,
    layer_type: str | None = None,
    default_base: float = 10_000.0,
    default_rotary_share: float = 1.0,
    aliases: Mapping[str, str] | None = None,
) -> RopeSpec:
    """Read the rotary embedding of a model, or of its layers of one type.

    Args:
        aliases: names under which this architecture's checkpoints know a type.

    Raises:
        UnsupportedModel: an unknown type, or one that lacks its numbers; never silently unscaled.
    """
    parameters = _parameters(config, layer_type)
    named = parameters.get("rope_type") or parameters.get("type")
    if named is None and parameters.get("factor") is not None:
        raise UnsupportedModel(
            f"The model's config stretches its rotary embedding by {parameters['factor']} and does not say how. "
            "Add the rope_type that the model was trained with to config.json."
        )
    written = named or "default"
    kind = (aliases or {}).get(written, written)
    share = number(parameters, "partial_rotary_factor", number(config, "partial_rotary_factor", default_rotary_share))
    rotary_size = int(head_size * share)
    if rotary_size <= 0 or rotary_size % 2:
        raise UnsupportedModel(
            f"The model rotates {rotary_size} of {head_size} features a head; an even positive number is needed."
        )
    max_positions = integer(config, "max_position_embeddings")
    return RopeSpec(
        rotary_size=rotary_size,
        base=number(parameters, "rope_theta", number(config, "rope_theta", default_base)),
        max_positions=max_positions,
        scaling=_checked_scaling(config, kind, parameters, max_positions, rotary_size),
    )


def context_length(rope: RopeSpec) -> int:
    """Return how many positions a rotary model is meant for: interpolating types state the length before stretching."""
    scaling, positions = rope.scaling, rope.max_positions
    kind = scaling["rope_type"]
    if kind in ("linear", "dynamic"):
        return int(positions * number(scaling, "factor"))
    if kind == "yarn":
        return max(positions, int(number(scaling, "original_max_position_embeddings") * number(scaling, "factor")))
    return positions


def _parameters(config: Config, layer_type: str | None) -> Mapping[str, Any]:
    """Return the flat mapping; empty when the config has none."""
    parameters = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(parameters, Mapping):
        raise UnsupportedModel(f"The model's config has rope scaling {parameters!r}; a mapping is needed.")
    nested = {key: value for key, value in parameters.items() if key.endswith("_attention")}
    if not nested:
        return parameters
    if layer_type is None and len(nested) == 1:
        (layer_type,) = nested
    if layer_type not in nested:
        raise UnsupportedModel(
            f"The model's config has rope_parameters for {sorted(nested)}; {layer_type or 'a single set'} is needed."
        )
    return nested[layer_type] or {}


def _checked_scaling(
    config: Config, kind: str, parameters: Mapping[str, Any], max_positions: int, rotary_size: int
) -> Mapping[str, object]:
    check_rope_type(kind)
    scaling: dict[str, object] = {"rope_type": kind}
    if kind in ("llama3", "yarn", "longrope"):
        # The config's own field wins over the one inside rope_scaling, as in transformers (Phi-3 has only the former).
        key = "original_max_position_embeddings"
        scaling[key] = number(config, key, number(parameters, key, float(max_positions)))
    if kind == "yarn" and parameters.get("factor") is None:
        parameters = {**parameters, "factor": max_positions / number(scaling, "original_max_position_embeddings")}
    for key in _REQUIRED.get(kind, ()):
        scaling[key] = number(parameters, key)
    if kind in ("yarn", "longrope"):
        optional = _OPTIONAL if kind == "yarn" else ("attention_factor", "factor")
        scaling |= {key: number(parameters, key) for key in optional if parameters.get(key) is not None}
    if kind == "yarn":
        scaling["truncate"] = bool(parameters.get("truncate", True))
    if kind == "longrope":
        scaling |= {key: _factors(parameters, key, rotary_size) for key in ("short_factor", "long_factor")}
    return scaling


def _factors(parameters: Mapping[str, Any], key: str, rotary_size: int) -> tuple[float, ...]:
    factors = parameters.get(key)
    if not isinstance(factors, list | tuple) or len(factors) != rotary_size // 2:
        raise UnsupportedModel(f"The model's longrope scaling has {key} = {factors!r}; {rotary_size // 2} are needed.")
    return tuple(float(factor) for factor in factors)
