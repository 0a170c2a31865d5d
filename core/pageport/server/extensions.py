"""``Extensions``: what plugins add to a server."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from pageport.errors import InvalidParameter
from pageport.plugins import Installed, PluginKind, T, find_plugins, usable
from pageport.sampling.processor_plugins import PROCESSOR_PLUGINS, LogitsProcessorFactory, NamedProcessor
from pageport.server.errors import quote
from pageport.server.metrics_sinks import SINK_PLUGINS, MetricsSink
from pageport.server.protocol.common import ProcessorCall
from pageport.text.tool_calls.tool_format import TOOL_FORMATS, ToolFormat
from pageport.text.tool_calls.tool_format_plugins import TOOL_FORMAT_PLUGINS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Extensions:
    """Plugins' things by name; tool formats are those of plugins first, since who installs one wants it."""

    tool_formats: Mapping[str, ToolFormat]
    logits_processors: Mapping[str, type[LogitsProcessorFactory]]
    metrics_sinks: Mapping[str, type[MetricsSink]]

    @classmethod
    def load(cls) -> "Extensions":
        """Find all; a warning for each that cannot be used says why."""
        installed = entry_points()
        return cls(
            tool_formats={**_usable(TOOL_FORMAT_PLUGINS, installed), **TOOL_FORMATS},
            logits_processors=_usable(PROCESSOR_PLUGINS, installed),
            metrics_sinks=_usable(SINK_PLUGINS, installed),
        )

    def tool_format_of(self, template: str) -> ToolFormat | None:
        """Find the format that a chat template shows to its model; None: none that is known."""
        return next((known for known in self.tool_formats.values() if known.is_used_by(template)), None)

    def processors(self, calls: Sequence[str | ProcessorCall] | None) -> tuple[NamedProcessor, ...] | None:
        """Return the processors that a request names.

        Raises:
            InvalidParameter: there is none of a name, or it does not take the arguments.
        """
        if not calls:
            return None
        return tuple(self._processor(ProcessorCall(name=call) if isinstance(call, str) else call) for call in calls)

    def _processor(self, call: ProcessorCall) -> NamedProcessor:
        factory = self.logits_processors.get(call.name)
        if factory is None:
            known = ", ".join(self.logits_processors) or "none"
            raise InvalidParameter(
                f"There is no logits processor {quote(call.name)} here. Known: {known}.", "logits_processors"
            )
        arguments = call.arguments or {}
        try:
            factory.check(arguments)
        except ValueError as error:
            raise InvalidParameter(
                f"The logits processor {call.name} refuses its arguments: {error}.", "logits_processors"
            ) from error
        return NamedProcessor.of(factory, arguments)


def _usable(kind: PluginKind[T], installed: Installed) -> dict[str, T]:
    entries = find_plugins(kind, installed)
    for entry in entries:
        if entry.error is not None:
            logger.warning("The %s %s (%s) cannot be used: %s", kind.noun, entry.name, entry.origin, entry.error)
    return usable(entries)
