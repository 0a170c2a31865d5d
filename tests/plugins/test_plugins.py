"""Every way a plugin can fail is an entry with a reason; finding plugins itself never fails."""

import subprocess
import sys
from typing import Any

import pytest

from pageport.cli.extensions import KINDS
from pageport.plugins import PluginEntry, PluginKind, find_plugins, usable
from pageport.text.tool_calls.tool_format_plugins import TOOL_FORMAT_PLUGINS

from .conftest import Install

GOOD = {
    "pageport.tool_formats": """
        from pageport.plugins import hookimpl
        from pageport.text.tool_calls.tool_format import CallSyntax, ToolFormat

        @hookimpl
        def pageport_tool_formats():
            syntax = CallSyntax(between=" ")
            return [ToolFormat(name="NAME", begin_markers=("<c>",), syntaxes=(syntax,), template_signs=("<c>",))]
    """,
    "pageport.logits_processors": """
        from pageport.plugins import hookimpl
        from pageport.sampling.processor_plugins import LogitsProcessorFactory

        class Same(LogitsProcessorFactory):
            name = "NAME"

            @classmethod
            def make(cls, arguments):
                return lambda token_ids, logits: logits

        @hookimpl
        def pageport_logits_processors():
            return [Same]
    """,
    "pageport.model_families": """
        from pageport.models.family_plugins import ModelFamily
        from pageport.plugins import hookimpl

        @hookimpl
        def pageport_model_families():
            return [ModelFamily(architectures=("NAME",), decoder_spec=lambda config, names: None)]
    """,
    "pageport.metrics_sinks": """
        from pageport.plugins import hookimpl
        from pageport.server.metrics_sinks import MetricsSink

        class Nowhere(MetricsSink):
            name = "NAME"

            def write(self, samples):
                pass

        @hookimpl
        def pageport_metrics_sinks():
            return [Nowhere]
    """,
}
OURS = {"pageport.tool_formats": "hermes", "pageport.model_families": "LlamaForCausalLM"}


def good(group: str, name: str = "mine") -> str:
    return GOOD[group].replace("NAME", name)


def found(kind: PluginKind[Any], name: str) -> PluginEntry[Any]:
    (entry,) = [entry for entry in find_plugins(kind) if entry.name == name]
    return entry


each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.group)


@each_kind
def test_an_installed_plugin_is_found_with_where_it_comes_from(install: Install, kind: PluginKind[Any]) -> None:
    install("my-plugin", good(kind.group), kind.group, "any")
    entry = found(kind, "mine")
    assert (entry.origin, entry.error) == ("my-plugin 3.1", None)
    assert list(usable([entry])) == ["mine"]


@each_kind
def test_a_name_that_two_bring_is_an_error_that_names_both(install: Install, kind: PluginKind[Any]) -> None:
    install("first", good(kind.group), kind.group, "any")
    install("second", good(kind.group), kind.group, "any")
    entry = found(kind, "mine")
    assert entry.value is None
    assert "claimed by first 3.1 and second 3.1. Uninstall all but one." in str(entry.error)


@pytest.mark.parametrize("group", OURS)
def test_a_name_of_ours_cannot_be_taken(install: Install, group: str) -> None:
    (kind,) = [kind for kind in KINDS if kind.group == group]
    install("thief", good(group, OURS[group]), group, "any")
    assert "pageport's own and claimed by thief 3.1" in str(found(kind, OURS[group]).error)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import a_module_nobody_has", "failed to load: ModuleNotFoundError"),
        ("raise SystemExit(3)", "failed to load: SystemExit: 3"),
        ("def broken(:", "failed to load: SyntaxError"),
        ("x = 1", "brings no tool format: plugin bug, it needs a pageport_tool_formats function"),
        (good("pageport.tool_formats").replace("pageport_tool_formats", "pageport_tool_format"), "PluginValidation"),
        (good("pageport.tool_formats").replace("return [", "return [7, "), "returned 7, which is no ToolFormat"),
        (
            good("pageport.tool_formats").replace("syntax =", "raise OSError('disk')\n            syntax ="),
            "OSError: disk",
        ),
    ],
)
def test_a_broken_plugin_is_told_and_the_others_work(install: Install, source: str, reason: str) -> None:
    install("broken", source, "pageport.tool_formats", "bad")
    install("right", good("pageport.tool_formats", "right"), "pageport.tool_formats", "good")
    assert reason in str(found(TOOL_FORMAT_PLUGINS, "bad").error)
    assert "right" in usable(find_plugins(TOOL_FORMAT_PLUGINS))


@pytest.mark.parametrize("group", ["pageport.logits_processors", "pageport.metrics_sinks"])
def test_a_class_of_another_kind_or_without_a_name_is_a_plugin_bug(install: Install, group: str) -> None:
    (kind,) = [kind for kind in KINDS if kind.group == group]
    install("nameless", good(group).replace('name = "mine"', "x = 1"), group, "one")
    install("other", good(group).replace("return [", "return [int] or ["), group, "two")
    assert "has no name: plugin bug" in str(found(kind, "one").error)
    assert "returned <class 'int'>, which is no subclass of" in str(found(kind, "two").error)


def test_one_module_may_serve_several_kinds(install: Install) -> None:
    source = good("pageport.tool_formats") + good("pageport.model_families")
    install("both", source, "pageport.tool_formats", "any")
    assert found(TOOL_FORMAT_PLUGINS, "mine").error is None


def test_the_command_line_lists_them_with_reasons(install: Install) -> None:
    install("right", good("pageport.tool_formats", "right"), "pageport.tool_formats", "good")
    install("broken", "x = 1", "pageport.model_families", "bad")
    command = [sys.executable, "-m", "pageport", "extensions"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["tool", "format", "right", "yes", "right", "3.1"] in rows
    assert any(row[:4] == ["model", "family", "bad", "no"] for row in rows)
