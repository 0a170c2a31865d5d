"""What ``pageport backends`` and ``pageport backends explain`` show, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from pageport.backend.capabilities import Capabilities
from pageport.backend.discovery import Discovery, installed, select
from pageport.backend.kv import Memory
from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES

if TYPE_CHECKING:
    from pageport.backend.device import Device


class BackendRow(NamedTuple):
    """One backend: can it be used, with how many devices, and why."""

    name: str
    distribution: str
    is_usable: bool
    devices: int
    reason: str


class CapabilityRow(NamedTuple):
    """One field of ``Capabilities`` and its value as text."""

    name: str
    value: str


class OpRow(NamedTuple):
    """What serves one op: ``source`` is "device" or "reference"; ``where`` is ``module:qualname``."""

    name: str
    source: str
    where: str
    is_hot: bool


class WeightRow(NamedTuple):
    """What becomes of weights stored as ``scheme``."""

    scheme: str
    becomes: str


@dataclass(frozen=True, kw_only=True)
class Programs:
    """How a device of static shapes runs a model: one program for each of these shapes."""

    built_by: str
    compiled_by: str
    prompts: tuple[int, ...]  # tokens of one prompt
    decodes: tuple[int, ...]  # requests with one token each
    contexts: tuple[int, ...]  # tokens that block tables span; empty: one size, the served context

    @property
    def count(self) -> int:
        """How many programs that is, where an engine's limits leave all of them."""
        shapes = {(1, tokens) for tokens in self.prompts} | {(requests, requests) for requests in self.decodes}
        return len(shapes) * max(1, len(self.contexts))


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One opened device."""

    name: str
    report: tuple[str, ...]  # why this backend
    memory: Memory
    capabilities: tuple[CapabilityRow, ...]
    ops: tuple[OpRow, ...]
    weights: tuple[WeightRow, ...]
    programs: Programs | None = None  # None: ops are called one by one


def backend_rows(discovery: Discovery) -> list[BackendRow]:
    """Return a row for each backend, usable ones first."""
    rows = [
        BackendRow(
            name=entry.name,
            distribution=entry.origin,
            is_usable=entry.is_usable,
            devices=entry.probe.count if entry.probe else 0,
            reason=entry.reason,
        )
        for entry in discovery.entries
    ]
    return sorted(rows, key=lambda row: (not row.is_usable, row.name))


def explain(
    discovery: Discovery,
    name: str,
    ordinal: int = 0,
    options: Mapping[str, str] | None = None,
    *,
    simulates: bool = False,
) -> Explanation:
    """Open a device, look at it and close it.

    Args:
        simulates: look at the device as its backend simulates it on the host.

    Raises:
        BackendUnavailable: as ``select`` and ``Backend.open``.
        UnsupportedFeature: the backend cannot be simulated.
        BackendError: the device's overrides and its declared features disagree.
    """
    report: tuple[str, ...] = (f"{name}: simulated on the host",)
    if simulates:
        backend = installed(discovery, name)
    else:
        backend, report = select(discovery, name)
    # Only now is torch needed.
    from pageport.backend.op_table import HOT_OPS, compile_ops

    device = backend().simulate(options or {}) if simulates else backend().open(ordinal, options or {})
    try:
        table = compile_ops(device)
        return Explanation(
            name=backend.name,
            report=report,
            memory=device.memory(),
            capabilities=_capability_rows(device.capabilities),
            ops=tuple(
                OpRow(op, served.source, served.where, op in HOT_OPS) for op, served in table.implementations.items()
            ),
            weights=_weight_rows(device.capabilities),
            programs=_programs(device),
        )
    finally:
        device.close()


def _capability_rows(capabilities: Capabilities) -> tuple[CapabilityRow, ...]:
    return tuple(
        CapabilityRow(field.name, _as_text(getattr(capabilities, field.name))) for field in fields(capabilities)
    )


def _programs(device: "Device") -> Programs | None:
    # Whoever has a device has torch.
    from pageport.backend.op_table import find_implementation

    capabilities = device.capabilities
    if not capabilities.static_shapes:
        return None
    builder, compiler = (find_implementation(device, method) for method in ("build_model", "compile_graph"))
    if compiler.source == "device":
        compiled_by = compiler.where
    elif builder.source == "device":
        compiled_by = "the program that it builds"
    else:
        compiled_by = "nobody: it runs as plain torch"
    return Programs(
        built_by=builder.where if builder.source == "device" else f"{builder.where} (inherited)",
        compiled_by=compiled_by,
        prompts=capabilities.token_buckets,
        decodes=capabilities.request_buckets,
        contexts=capabilities.context_buckets,
    )


def _weight_rows(capabilities: Capabilities) -> tuple[WeightRow, ...]:
    rounding = ", activations are rounded" if capabilities.quantises_activations else ""
    rows = []
    for scheme in dict.fromkeys([*PLAIN_SCHEMES, *BLOCK_SCHEMES, *capabilities.weight_schemes]):
        is_plain = scheme in PLAIN_SCHEMES
        if scheme in capabilities.weight_schemes:
            rows.append(WeightRow(scheme, "kept as stored" + ("" if is_plain else rounding)))
        else:
            rows.append(WeightRow(scheme, f"{'converted' if is_plain else 'dequantised'} to the compute dtype"))
    rows += [
        WeightRow(f"any, --quantization {name}", f"quantised to {name}{rounding}")
        for name in capabilities.quantisations
    ]
    return tuple(rows)


def _as_text(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple():
            return ", ".join(map(str, value)) or "-"
        case Mapping():
            return ", ".join(f"{key} {version}" for key, version in value.items()) or "-"
        case None:
            return "-"
    return str(value)
