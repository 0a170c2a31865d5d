"""``pageport extensions``: what plugins bring besides backends."""

from importlib.metadata import entry_points
from typing import Any

from rich.console import Console
from rich.table import Table

from pageport.models.family_plugins import FAMILY_PLUGINS
from pageport.plugins import PluginKind, find_plugins
from pageport.sampling.processor_plugins import PROCESSOR_PLUGINS
from pageport.server.metrics_sinks import SINK_PLUGINS
from pageport.text.tool_calls.tool_format_plugins import TOOL_FORMAT_PLUGINS

KINDS: tuple[PluginKind[Any], ...] = (TOOL_FORMAT_PLUGINS, PROCESSOR_PLUGINS, FAMILY_PLUGINS, SINK_PLUGINS)


def print_extensions() -> None:
    """Print every plugin of every kind, and why it cannot be used where it cannot."""
    table = Table("kind", "name", "usable", "from", "why not", box=None, pad_edge=False, header_style="bold")
    installed = entry_points()
    for kind in KINDS:
        for entry in find_plugins(kind, installed):
            table.add_row(kind.noun, entry.name, "no" if entry.error else "yes", entry.origin, entry.error or "")
    if table.row_count:
        Console().print(table)
    else:
        groups = ", ".join(kind.group for kind in KINDS)
        print(f"No plugins are installed. Entry-point groups: {groups}. docs/extending.md has an example of each.")
