"""Formats of tool calls that other distributions bring (entry-point group ``pageport.tool_formats``)."""

from pageport.errors import ConfigurationError
from pageport.plugins import PluginKind, find_plugins, hookspec, problem_of_instances, usable
from pageport.text.tool_calls.tool_format import TOOL_FORMATS, ToolFormat


@hookspec
def pageport_tool_formats() -> list[ToolFormat]:
    """Return the formats this plugin brings."""
    raise NotImplementedError


TOOL_FORMAT_PLUGINS = PluginKind[ToolFormat](
    group="pageport.tool_formats",
    hook=pageport_tool_formats,
    noun="tool format",
    problem=problem_of_instances(ToolFormat),
    names=lambda tool_format: (tool_format.name,),
    own_names=TOOL_FORMATS,
)


def require_tool_format(name: str) -> ToolFormat:
    """Return a format of ours or of a plugin.

    Raises:
        ConfigurationError: there is none of this name, or its plugin is broken; says which there are.
    """
    if name in TOOL_FORMATS:
        return TOOL_FORMATS[name]
    entries = find_plugins(TOOL_FORMAT_PLUGINS)
    known = usable(entries)
    if name in known:
        return known[name]
    broken = next((f" {name} ({entry.origin}): {entry.error}" for entry in entries if entry.name == name), "")
    raise ConfigurationError(
        f"tool-format is {name!r}; use auto, none, {', '.join([*TOOL_FORMATS, *known])}, or install a plugin.{broken}"
    )
