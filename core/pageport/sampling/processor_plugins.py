"""Logits processors that requests name (entry-point group ``pageport.logits_processors``). No torch here."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

from pageport.plugins import PluginKind, find_plugins, hookspec, problem_of_classes, usable
from pageport.sampling.params import LogitsProcessor


class LogitsProcessorFactory(ABC):
    """Makes processors of one kind, each for one request.

    The module it stands in must import nothing heavy: the server, which has no torch, imports it too.
    """

    name: str

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that ``make`` cannot use: the request is answered with 400 then.

        Called in the server's process; the default takes none.

        Raises:
            ValueError: says what is wrong with them.
        """
        if arguments:
            raise ValueError(f"{cls.name} takes no arguments")

    @classmethod
    @abstractmethod
    def make(cls, arguments: Mapping[str, Any]) -> LogitsProcessor:
        """Make a processor: ``(output token ids, logits float32 [vocab]) -> logits``. Called in the engine's process.

        What it raises ends the request alone, with an error that tells it. It may be called for several choices of
        the request in turn.
        """


@hookspec
def pageport_logits_processors() -> list[type[LogitsProcessorFactory]]:
    """Return the processors this plugin brings; import nothing heavy here."""
    raise NotImplementedError


PROCESSOR_PLUGINS = PluginKind[type[LogitsProcessorFactory]](
    group="pageport.logits_processors",
    hook=pageport_logits_processors,
    noun="logits processor",
    problem=problem_of_classes(LogitsProcessorFactory),
    names=lambda factory: (factory.name,),
)


@dataclass(frozen=True)
class NamedProcessor:
    """A processor by name, which can cross to the engine's process and is made there, when it is first called.

    ``home`` is where its factory is (``module:name``), for who knows it: a step need not wait for a search then.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    home: str | None = None

    @classmethod
    def of(cls, factory: type[LogitsProcessorFactory], arguments: Mapping[str, Any]) -> "NamedProcessor":
        """Name what ``factory`` will make."""
        is_found_by_home = factory.__qualname__.isidentifier()  # else it stands within something
        home = f"{factory.__module__}:{factory.__qualname__}" if is_found_by_home else None
        return cls(factory.name, arguments, home)

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, output_token_ids: list[int], logits: Any) -> Any:
        """Do what the processor does."""
        return self._processor(output_token_ids, logits)

    @cached_property
    def _processor(self) -> LogitsProcessor:
        factory = self._factory()
        factory.check(self.arguments)
        return factory.make(self.arguments)

    def _factory(self) -> type[LogitsProcessorFactory]:
        if self.home is not None:
            module, _, name = self.home.partition(":")
            factory: type[LogitsProcessorFactory] = getattr(import_module(module), name)
            return factory
        known = usable(find_plugins(PROCESSOR_PLUGINS))
        if self.name not in known:
            raise LookupError(f"no installed plugin brings it; known: {', '.join(known) or 'none'}")
        return known[self.name]
