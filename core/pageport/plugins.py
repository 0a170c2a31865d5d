"""What other distributions bring: entry points, loaded one by one, so that a broken one is reported and nothing else.

A ``PluginKind`` is a place where they may add something; each stands in a module of its own beside what it is about.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar

import pluggy

hookspec = pluggy.HookspecMarker("pageport")
hookimpl = pluggy.HookimplMarker("pageport")

T = TypeVar("T")


class Installed(Protocol):
    """What ``importlib.metadata.entry_points()`` returns."""

    def select(self, *, group: str) -> Iterable[EntryPoint]: ...


@dataclass(frozen=True)
class PluginKind(Generic[T]):
    """One place where distributions add things of type ``T``, each of which has a name.

    Attributes:
        group: of entry points, as ``pageport.tool_formats``.
        hook: the function, marked as ``hookspec``, that a plugin implements; it returns a list.
        noun: what one of the things is called in messages.
        problem: says what is wrong with a thing, or None.
        names: under which names one is known.
        own_names: of the things that pageport itself brings, which no plugin can replace.
    """

    group: str
    hook: Callable[..., Any]
    noun: str
    problem: Callable[[Any], str | None]
    names: Callable[[T], Iterable[str]]
    own_names: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class PluginEntry(Generic[T]):
    """One thing of a plugin, or the reason why there is none."""

    name: str
    origins: tuple[str, ...]  # distributions with their versions
    value: T | None = None
    error: str | None = None

    @property
    def origin(self) -> str:
        return ", ".join(self.origins)


def problem_of_instances(wanted: type) -> Callable[[Any], str | None]:
    """Return what says why a value is no ``wanted``."""
    return lambda value: None if isinstance(value, wanted) else f"{_returned(value)} no {wanted.__name__}"


def problem_of_classes(base: type) -> Callable[[Any], str | None]:
    """Return what says why a value is no subclass of ``base`` with a name."""

    def problem(value: Any) -> str | None:
        if not (isinstance(value, type) and issubclass(value, base)):
            return f"{_returned(value)} no subclass of {base.__name__}"
        return None if isinstance(getattr(value, "name", None), str) else f"{value.__qualname__} has no name"

    return problem


def find_plugins(kind: PluginKind[T], installed: Installed | None = None) -> list[PluginEntry[T]]:
    """Load every installed plugin of a kind; two of one name, or one of a name of ours, are an error each.

    Args:
        installed: all entry points, where several kinds are looked for: finding them is a search of the disk.
    """
    entries: list[PluginEntry[T]] = []
    points = (installed or entry_points()).select(group=kind.group)
    for point in sorted(points, key=lambda point: (point.name, origin_of(point))):
        entries += _load(kind, point)
    return list(_unique(kind, entries))


def usable(entries: Iterable[PluginEntry[T]]) -> dict[str, T]:
    """Return what can be used, by name."""
    return {entry.name: entry.value for entry in entries if entry.value is not None}


def ask_plugin(point: EntryPoint, hook: Callable[..., Any]) -> list[Any]:
    """Import one plugin and return all that its implementations of ``hook`` return.

    Raises:
        Exception, SystemExit: whatever the plugin raises.
    """
    # A manager of its own, so that a plugin is judged alone.
    manager = pluggy.PluginManager("pageport")
    manager.add_hookspecs(sys.modules[hook.__module__])
    manager.register(point.load(), name=point.name)
    caller = getattr(manager.hook, hook.__name__)
    if not caller.get_hookimpls():
        manager.check_pending()  # a misspelled name; beside the right one, other hooks are other kinds' business
    return [value for values in caller() for value in values]


def origin_of(point: EntryPoint) -> str:
    """Name the distribution of an entry point, and its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def described(error: BaseException) -> str:
    """Show an error with its type."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _returned(value: Any) -> str:
    return f"its plugin returned {value!r}, which is"


def _load(kind: PluginKind[T], point: EntryPoint) -> Iterator[PluginEntry[T]]:
    origins = (origin_of(point),)
    try:
        values: Sequence[Any] = ask_plugin(point, kind.hook)
    except (Exception, SystemExit) as error:
        yield PluginEntry(
            name=point.name,
            origins=origins,
            error=f"its plugin {point.value} failed to load: {described(error)}. Upgrade or remove it.",
        )
        return
    if not values:
        yield PluginEntry(
            name=point.name,
            origins=origins,
            error=f"its plugin {point.value} brings no {kind.noun}: plugin bug, it needs a {kind.hook.__name__} "
            "function marked with pageport.plugins.hookimpl.",
        )
    for value in values:
        problem = kind.problem(value)
        if problem is not None:
            yield PluginEntry(name=point.name, origins=origins, error=f"{problem}: plugin bug.")
            continue
        for name in kind.names(value):
            yield PluginEntry(name=name, origins=origins, value=value)


def _unique(kind: PluginKind[T], entries: list[PluginEntry[T]]) -> Iterator[PluginEntry[T]]:
    """Replace entries of one name by one that names where they come from."""
    by_name: dict[str, list[PluginEntry[T]]] = defaultdict(list)
    for entry in entries:
        by_name[entry.name].append(entry)
    for name, rivals in by_name.items():
        origins = tuple(origin for rival in rivals for origin in rival.origins)
        if name in kind.own_names:
            yield PluginEntry(
                name=name,
                origins=origins,
                error=f"the name {name} is pageport's own and claimed by {' and '.join(origins)}. Uninstall it.",
            )
        elif len(rivals) == 1:
            yield rivals[0]
        else:
            error = f"the name {name} is claimed by {' and '.join(sorted(origins))}. Uninstall all but one."
            yield PluginEntry(name=name, origins=origins, error=error)
