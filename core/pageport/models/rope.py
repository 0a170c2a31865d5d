"""Rotary tables: cosines and sines of every position, for each way of scaling that models were trained with.

All angles are computed in float32, in the order of operations transformers uses, so that tables agree to the last bit
or nearly so.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pageport.models.rope_types import check_rope_type
from pageport.models.spec import RopeSpec


def rope_tables(ropes: Sequence[RopeSpec], num_positions: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the table of each, on the device."""
    return tuple(rope_table(rope, num_positions).to(device) for rope in ropes)


def rope_table(rope: RopeSpec, num_positions: int) -> Float[Tensor, "positions rotary_size"]:
    """Return the cosines, then the sines, of the angles of positions 0 … ``num_positions - 1``, in float32 on the host.

    Two types depend on how long the sequence gets, "dynamic" and "longrope". Keys are cached after rotation and cannot
    be rotated again, so their table is made once, for sequences of ``num_positions`` tokens: what transformers
    computes for a prompt of that length. A model served with a shorter context gets the shorter one's angles.

    Raises:
        UnsupportedModel: the scaling's ``rope_type`` is unknown; the message names it.
    """
    kind = rope.scaling["rope_type"]
    check_rope_type(kind)
    scalings: dict[object, Callable[[RopeSpec, int], tuple[Tensor, float]]] = {
        "default": _default,
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
    }
    inverse_frequencies, attention_factor = scalings[kind](rope, num_positions)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse_frequencies
    return torch.cat((angles.cos() * attention_factor, angles.sin() * attention_factor), dim=1)


def _default(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    return 1.0 / _wavelengths(rope.base, rope.rotary_size), 1.0


def _linear(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Interpolate positions (arXiv:2306.15595)."""
    return 1.0 / _wavelengths(rope.base, rope.rotary_size) / _number(rope.scaling, "factor"), 1.0


def _dynamic(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Raise the base with the length, NTK-aware, beyond the trained one."""
    factor = _number(rope.scaling, "factor")
    length = max(num_positions, rope.max_positions)
    growth = factor * length / rope.max_positions - (factor - 1)
    base = rope.base * growth ** (rope.rotary_size / (rope.rotary_size - 2))
    return 1.0 / _wavelengths(base, rope.rotary_size), 1.0


def _llama3(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Divide low frequencies, keep high ones, blend between (Llama 3.1)."""
    factor = _number(rope.scaling, "factor")
    low_factor = _number(rope.scaling, "low_freq_factor")
    high_factor = _number(rope.scaling, "high_freq_factor")
    original = _number(rope.scaling, "original_max_position_embeddings")
    plain = 1.0 / _wavelengths(rope.base, rope.rotary_size)
    wavelength = 2 * math.pi / plain
    scaled = torch.where(wavelength > original / low_factor, plain / factor, plain)
    smooth = (original / wavelength - low_factor) / (high_factor - low_factor)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    is_between = (wavelength >= original / high_factor) & (wavelength <= original / low_factor)
    return torch.where(is_between, blended, scaled), 1.0


def _yarn(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Interpolate low frequencies, extrapolate high ones, with a ramp between (arXiv:2309.00071)."""
    scaling, size = rope.scaling, rope.rotary_size
    factor = _number(scaling, "factor")
    wavelengths = _wavelengths(rope.base, size)
    low, high = _yarn_ramp_bounds(rope)
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    extrapolated = 1 - ramp
    frequencies = 1.0 / (factor * wavelengths) * (1 - extrapolated) + 1.0 / wavelengths * extrapolated
    return frequencies, _yarn_attention_factor(scaling, factor)


def _yarn_ramp_bounds(rope: RopeSpec) -> tuple[float, float]:
    scaling, size = rope.scaling, rope.rotary_size
    original = _number(scaling, "original_max_position_embeddings")

    def feature_turning(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = feature_turning(_number(scaling, "beta_fast", 32.0))
    high = feature_turning(_number(scaling, "beta_slow", 1.0))
    if scaling.get("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, size - 1.0)
    return low, high + 0.001 if low == high else high


def _yarn_attention_factor(scaling: Mapping[str, object], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def temperature(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return temperature(_number(scaling, "mscale")) / temperature(_number(scaling, "mscale_all_dim"))
    return temperature(1.0)


def _longrope(rope: RopeSpec, num_positions: int) -> tuple[Tensor, float]:
    """Divide each frequency by its own searched factor (arXiv:2402.13753)."""
    scaling = rope.scaling
    original = _number(scaling, "original_max_position_embeddings")
    key = "long_factor" if num_positions > original else "short_factor"
    factors = scaling[key]
    assert isinstance(factors, Sequence)
    divisors = torch.tensor([float(factor) for factor in factors], dtype=torch.float32)
    frequencies = 1.0 / (divisors * _wavelengths(rope.base, rope.rotary_size))
    if scaling.get("attention_factor") is not None:
        return frequencies, _number(scaling, "attention_factor")
    growth = _number(scaling, "factor", rope.max_positions / original)
    return frequencies, math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0


def _wavelengths(base: float, rotary_size: int) -> Float[Tensor, "half_rotary_size"]:
    """Return positions per radian of each feature pair."""
    wavelengths: Tensor = base ** (torch.arange(0, rotary_size, 2, dtype=torch.float32) / rotary_size)
    return wavelengths


def _number(scaling: Mapping[str, object], key: str, default: float | None = None) -> float:
    value = scaling.get(key)
    if value is None:
        value = default
    assert isinstance(value, int | float), f"architectures/_rope_config.py lets {key}={value!r} pass"
    return float(value)
