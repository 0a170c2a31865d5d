"""Which backends are installed and usable here. Imports no torch; a broken plugin is a row with a reason."""

import inspect
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, metadata
from typing import Any, NamedTuple

from pageport.backend import hook
from pageport.backend.interface import INTERFACE, Backend, Probe
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport.plugins import ask_plugin, described

# Comma-separated entry-point names: only these plugins are loaded.
RESTRICTION = "PAGEPORT_BACKENDS"
# Extras of this distribution that are no backends.
OTHER_EXTRAS = frozenset({"dev", "interop", "otel", "server"})


@dataclass(frozen=True, kw_only=True)
class BackendEntry:
    """One backend a plugin brings, or the reason why it brings none."""

    name: str
    distribution: str
    version: str
    backend: type[Backend] | None = None
    probe: Probe | None = None
    error: str | None = None

    @property
    def is_usable(self) -> bool:
        return self.error is None and self.probe is not None and self.probe.count > 0

    @property
    def origin(self) -> str:
        """The distribution it comes from, with its version."""
        return f"{self.distribution} {self.version}"

    @property
    def reason(self) -> str:
        """Why it is not usable, or how many devices it has and what its probe says of them."""
        if self.error is not None:
            return self.error
        if self.probe is None or self.probe.count <= 0:
            return (self.probe.reason if self.probe else "") or "its probe found no device and gives no reason"
        count = self.probe.count
        details = (f"{name}: {value}" for name, value in self.probe.details.items())
        return "; ".join((f"{count} device{'' if count == 1 else 's'}", *details))


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Everything found; ``left_out`` names entry points that ``PAGEPORT_BACKENDS`` excludes."""

    entries: tuple[BackendEntry, ...]
    left_out: tuple[str, ...] = ()


class Selection(NamedTuple):
    """The backend to open, and a line for each candidate saying why it was chosen or rejected."""

    backend: type[Backend]
    report: tuple[str, ...]


def discover(environ: Mapping[str, str] = os.environ) -> Discovery:
    """Load and probe every installed backend plugin."""
    by_name: dict[str, list[EntryPoint]] = defaultdict(list)
    # One scan of the installed distributions: pluggy's own loader would scan them again for each name.
    for point in entry_points(group=hook.GROUP):
        by_name[point.name].append(point)
    only = {name.strip() for name in environ.get(RESTRICTION, "").split(",")} - {""}
    loaded = [name for name in sorted(by_name) if not only or name in only]
    entries: list[BackendEntry] = []
    for name in loaded:
        entries += [_claimed_twice(name, by_name[name])] if len(by_name[name]) > 1 else _load(by_name[name][0])
    return Discovery(entries=tuple(_unique(entries)), left_out=tuple(sorted(set(by_name) - set(loaded))))


def select(discovery: Discovery, wanted: str) -> Selection:
    """Choose a backend: ``auto`` takes the usable one of highest priority, a name only ever itself.

    Raises:
        BackendUnavailable: nothing usable, unknown name, or the named one cannot be used; says why and what to do.
        ConfigurationError: several names.
    """
    if "," in wanted:
        raise ConfigurationError(_several(wanted))
    if wanted != "auto":
        entry = next((entry for entry in discovery.entries if entry.name == wanted), None)
        if entry is None:
            raise BackendUnavailable(_unknown(discovery, wanted))
        if entry.backend is None or not entry.is_usable:
            raise BackendUnavailable(f"Backend {wanted} ({entry.origin}) cannot be used: {entry.reason}")
        return Selection(entry.backend, (f"{wanted} ({entry.origin}): chosen by name, {entry.reason}",))
    ranked = sorted(discovery.entries, key=_preference)
    chosen = ranked[0] if ranked else None
    if chosen is None or chosen.backend is None or not chosen.is_usable:
        raise BackendUnavailable(_none_usable(discovery))
    report = [f"{chosen.name} ({chosen.origin}): chosen, {chosen.reason}"]
    for entry in ranked[1:]:
        why = f"usable, but {chosen.name} comes first" if entry.is_usable else entry.reason
        report.append(f"{entry.name} ({entry.origin}): rejected, {why}")
    return Selection(chosen.backend, tuple(report))


def installed(discovery: Discovery, wanted: str) -> type[Backend]:
    """Return a backend by its name, whether or not it has a device here.

    Raises:
        BackendUnavailable: there is no such backend, or its plugin is broken.
    """
    found = next((entry.backend for entry in discovery.entries if entry.name == wanted), None)
    return select(discovery, wanted).backend if found is None else found


def _load(point: EntryPoint) -> list[BackendEntry]:
    """Import one plugin and ask it for its backends."""
    blank = _entry(point.name, [point])
    try:
        classes = ask_plugin(point, hook.pageport_backends)
    except (Exception, SystemExit) as error:
        return [
            replace(
                blank,
                error=f"its plugin {point.value} failed to load: {described(error)}. "
                f"Upgrade or remove {blank.distribution}.",
            )
        ]
    if not classes:
        return [
            replace(
                blank,
                error=f"its plugin {point.value} brings no backend: plugin bug, "
                "it needs a pageport_backends function marked with pageport.backend.hookimpl.",
            )
        ]
    return [_examine(blank, backend) for backend in classes]


def _examine(blank: BackendEntry, backend: Any) -> BackendEntry:
    """Check one class against the interface and probe it."""
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        return replace(blank, error=f"its plugin returned {backend!r}, which is no subclass of Backend: plugin bug.")
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not name:
        return replace(blank, error=f"{backend.__qualname__} has no name: plugin bug.")
    entry = replace(blank, name=name)
    if not any("interface" in vars(ours) for ours in backend.__mro__ if ours not in Backend.__mro__):
        return replace(
            entry,
            error=f"{backend.__qualname__} does not say which interface it was written for: plugin bug. "
            f"Add interface = {INTERFACE} to the class.",
        )
    if not is_served(backend.interface):
        return replace(
            entry,
            error=f"it was written for interface {_dotted(backend.interface)}; this pageport has "
            f"{_dotted(INTERFACE)}. Install versions that match.",
        )
    if inspect.isabstract(backend):
        missing = ", ".join(sorted(backend.__abstractmethods__))
        return replace(entry, error=f"{backend.__qualname__} does not implement {missing}: plugin bug.")
    try:
        probe = backend.probe()
    except (Exception, SystemExit) as error:
        return replace(entry, error=f"its probe raised {described(error)}: plugin bug, a probe never raises.")
    if not isinstance(probe, Probe):
        return replace(entry, error=f"its probe returned {probe!r} and not a Probe: plugin bug.")
    return replace(entry, backend=backend, probe=probe)


def is_served(interface: object, ours: tuple[int, int] = INTERFACE) -> bool:
    """Tell whether a backend written for ``interface`` works here.

    From 1.0 on: this major version up to this minor one, and the major version before. Below 1.0: only the same.
    """
    match interface:
        case (int(major), int(minor)):
            if ours[0] == 0 or major == 0:
                return interface == ours
            return major == ours[0] - 1 or (major == ours[0] and minor <= ours[1])
    return False


def _unique(entries: list[BackendEntry]) -> Iterator[BackendEntry]:
    """Replace backends of the same name, from whatever plugins, by one entry that names their origins."""
    by_name: dict[str, list[BackendEntry]] = defaultdict(list)
    for entry in entries:
        by_name[entry.name].append(entry)
    for name, rivals in by_name.items():
        if len(rivals) == 1:
            yield rivals[0]
            continue
        yield BackendEntry(
            name=name,
            distribution=", ".join(sorted({rival.distribution for rival in rivals})),
            version=", ".join(rival.version for rival in rivals),
            error=_conflict(name, (rival.origin for rival in rivals)),
        )


def _claimed_twice(name: str, points: list[EntryPoint]) -> BackendEntry:
    return replace(_entry(name, points), error=_conflict(name, (_entry(name, [point]).origin for point in points)))


def _conflict(name: str, origins: Iterable[str]) -> str:
    return f"the name {name} is claimed by {' and '.join(sorted(origins))}. Uninstall all but one."


def _entry(name: str, points: list[EntryPoint]) -> BackendEntry:
    distributions = [point.dist for point in points]
    return BackendEntry(
        name=name,
        distribution=", ".join(dist.name if dist else "?" for dist in distributions),
        version=", ".join(dist.version if dist else "?" for dist in distributions),
    )


def _preference(entry: BackendEntry) -> tuple[bool, int, str]:
    priority = entry.backend.priority if entry.backend else 0
    return (not entry.is_usable, -priority, entry.name)


def _unknown(discovery: Discovery, wanted: str) -> str:
    known = ", ".join(entry.name for entry in discovery.entries) or "none"
    if wanted in discovery.left_out:
        return f"Backend {wanted!r} is installed, but {RESTRICTION} leaves it out. Known here: {known}, auto."
    if wanted in _backend_extras():
        return f'Backend {wanted!r} is not installed. Run: pip install "pageport[{wanted}]". Known here: {known}, auto.'
    return f"There is no backend {wanted!r}. Known here: {known}, auto. Others come as plugins with pip install."


def _several(wanted: str) -> str:
    first, second = (*(name.strip() for name in wanted.split(",") if name.strip()), "…", "…")[:2]
    return (
        f"--backend is {wanted!r}, but an engine has one model on one backend: its cache and its steps are those of "
        f"one device. Start a server for each (--backend {first}, and --backend {second} with another --port), or open "
        "one LLM for each in the same process."
    )


def _none_usable(discovery: Discovery) -> str:
    reasons = "; ".join(f"{entry.name}: {entry.reason}" for entry in discovery.entries)
    if not reasons and discovery.left_out:
        return f"No backend is left: {RESTRICTION} leaves out {', '.join(discovery.left_out)}. Unset it."
    if not reasons:
        extras = ", ".join(f"pageport[{extra}]" for extra in _backend_extras())
        return f"No backend is installed. Run pip install with one of: {extras or 'a pageport backend plugin'}."
    return f"No backend is usable here. {reasons}"


def _backend_extras() -> list[str]:
    try:
        extras = metadata("pageport").get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []
    return sorted(set(extras) - OTHER_EXTRAS)


def _dotted(version: object) -> str:
    return ".".join(map(str, version)) if isinstance(version, tuple) else repr(version)
