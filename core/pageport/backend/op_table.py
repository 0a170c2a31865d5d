"""``OpTable``: one bound callable an op, compiled once before the first step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pageport.backend.choice import Choice
from pageport.backend.device import Device
from pageport.errors import BackendError

# Part of the interface itself: overriding the method is all it takes.
REQUIRED_OPS = ("linear", "embed", "write_kv", "decode_attention", "prefill_attention")
# These two are called through `attention`, which a device may override instead of them.
ATTENTION_OPS = ("decode_attention", "prefill_attention")
# Used when `Capabilities.features` declares "op:<name>" with a version that is served here.
OPTIONAL_OPS = (
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "add",
    "scale",
    "rope",
    "rope_write_kv",
    "silu_mul",
    "linear_silu_mul",
    "gelu_mul",
    "gelu",
    "softcap",
    "gather_rows",
    "sample",
)
# Versions of each optional op's signature and meaning that this pageport calls.
SERVED_VERSIONS: Mapping[str, tuple[int, ...]] = dict.fromkeys(OPTIONAL_OPS, (1,))
# What the inherited method of an optional op calls, where that is other ops of the device.
PARTS: Mapping[str, tuple[str, ...]] = {
    "rope_write_kv": ("rope", "write_kv"),
    "linear_silu_mul": ("linear", "silu_mul"),
}
# Features that are no op, the method each stands for, and the versions of it that this pageport calls.
METHODS: Mapping[str, str] = {"graph": "capture", "whole_model": "build_model"}
SERVED_METHODS: Mapping[str, tuple[int, ...]] = dict.fromkeys(METHODS, (1,))
# Where nearly all of a step's time goes: `--strict-ops` refuses the reference for these.
HOT_OPS = ("linear", "write_kv", *ATTENTION_OPS, "rms_norm", "add_rms_norm", "rope", "silu_mul")


@dataclass(frozen=True, slots=True)
class OpImplementation:
    """Who serves an op; ``where`` is ``module:qualname``.

    ``source``: the device's own code, the plain-torch reference, or "parts": other ops of the device (``PARTS``).
    """

    source: Literal["device", "reference", "parts"]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """What the model runner calls; signatures and meanings are those of ``Device``'s methods.

    ``implementations`` says who serves each op, with attention's two halves instead of ``attention``.
    """

    linear: Callable[..., Tensor]
    embed: Callable[..., Tensor]
    write_kv: Callable[..., None]
    attention: Callable[..., None]
    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., Tensor]
    layer_norm: Callable[..., Tensor]
    add: Callable[..., Tensor]
    scale: Callable[..., Tensor]
    rope: Callable[..., None]
    rope_write_kv: Callable[..., None]
    silu_mul: Callable[..., Tensor]
    linear_silu_mul: Callable[..., Tensor]
    gelu_mul: Callable[..., Tensor]
    gelu: Callable[..., Tensor]
    softcap: Callable[..., Tensor]
    gather_rows: Callable[..., Tensor]
    sample: Callable[..., Choice]
    implementations: Mapping[str, OpImplementation]


def compile_ops(device: Device, strict: bool = False) -> OpTable:
    """Bind every op to the device's implementation, or to the reference where it has none.

    Args:
        strict: refuse a hot op that the reference would serve.

    Raises:
        BackendError: overrides and declared features disagree, a version is not served here, or ``strict`` is not met.
    """
    _check_features(device)
    _check_methods(device)
    implementations = {name: find_implementation(device, name) for name in REQUIRED_OPS + OPTIONAL_OPS}
    slow = [name for name in HOT_OPS if _is_slow(name, implementations)]
    if strict and slow:
        raise BackendError(
            f"{_class_name(device)} leaves {', '.join(slow)} to the plain-torch reference, which --strict-ops refuses. "
            "Drop --strict-ops, or use a backend that implements them."
        )
    names = ["attention", *(name for name in implementations if name not in ATTENTION_OPS)]
    bound: dict[str, Any] = {name: getattr(device, name) for name in names}
    return OpTable(**bound, implementations=implementations)


def _check_features(device: Device) -> None:
    declared = {
        feature.removeprefix("op:"): version
        for feature, version in device.capabilities.features.items()
        if feature.startswith("op:")
    }
    who = _class_name(device)
    for name, version in declared.items():
        if name in REQUIRED_OPS:
            raise BackendError(
                f"{who} declares op:{name}, but {name} is part of the interface itself. Remove the feature."
            )
        if name not in OPTIONAL_OPS:
            raise BackendError(
                f"{who} declares op:{name}, an op this pageport does not know. It knows {', '.join(OPTIONAL_OPS)}; "
                "remove the feature, or use a pageport that has the op."
            )
        if version not in SERVED_VERSIONS[name]:
            raise BackendError(
                f"{who} declares op:{name} version {version}; this pageport serves "
                f"{', '.join(map(str, SERVED_VERSIONS[name]))}. Install versions that match."
            )
        if not _overrides(device, name):
            raise BackendError(
                f"{who} declares op:{name} but does not override Device.{name}. Override it, or remove the feature."
            )
    for name in OPTIONAL_OPS:
        if _overrides(device, name) and name not in declared:
            raise BackendError(
                f'{who} overrides {name} but does not declare it. Add "op:{name}": {SERVED_VERSIONS[name][-1]} to '
                "Capabilities.features, or remove the method."
            )


def _check_methods(device: Device) -> None:
    """Check the features that are no op as ``_check_features`` checks ops."""
    who = _class_name(device)
    for feature, method in METHODS.items():
        version = device.capabilities.features.get(feature)
        served = SERVED_METHODS[feature]
        # By its class: a check of the suite may wrap what one device inherits.
        is_overridden = getattr(type(device), method) is not getattr(Device, method)
        if version is None and is_overridden:
            raise BackendError(
                f'{who} overrides {method} but does not declare it. Add "{feature}": {served[-1]} to '
                "Capabilities.features, or remove the method."
            )
        if version is not None and version not in served:
            raise BackendError(
                f"{who} declares {feature} version {version}; this pageport serves {', '.join(map(str, served))}. "
                "Install versions that match."
            )
        if version is not None and not is_overridden:
            raise BackendError(
                f"{who} declares {feature} but does not override Device.{method}. Override it, or remove the feature."
            )


def _is_slow(name: str, implementations: Mapping[str, OpImplementation]) -> bool:
    """Tell whether the reference serves an op; a rope that only the device's own fused op would call does not count."""
    if name == "rope" and implementations["rope_write_kv"].source == "device":
        return False
    return implementations[name].source == "reference"


def find_implementation(device: Device, name: str) -> OpImplementation:
    """Find out who serves an op, or implements another method of ``Device``."""
    if name in ATTENTION_OPS and _overrides(device, "attention"):
        name = "attention"
    function = _function(device, name)
    where = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    if _overrides(device, name):
        return OpImplementation("device", where)
    return OpImplementation("parts" if name in PARTS else "reference", where)


def _overrides(device: Device, name: str) -> bool:
    return _function(device, name) is not getattr(Device, name)


def _function(device: Device, name: str) -> Any:
    method = getattr(device, name)
    return getattr(method, "__func__", method)


def _class_name(device: Device) -> str:
    return f"{type(device).__module__}.{type(device).__qualname__}"
