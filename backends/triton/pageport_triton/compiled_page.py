"""The committed table as a page to read: for each kernel and architecture, what its configurations take."""

from collections import defaultdict
from collections.abc import Iterable

from pageport_triton.compiled_case import CompiledCase
from pageport_triton.compiled_table import CompiledTable
from pageport_triton.targets import TARGETS

_INTRODUCTION = """\
# What the Triton kernels take

Made by `python -m pageport_triton.compile_check --write`; do not edit. Each kernel of `backends/triton` is compiled,
without a device, for every architecture below and for every launch that its table of configurations may choose (of
options that are independent of each other, every two values together). `backends/triton/compiled.json` has a line for
each.

A cell is *launches: registers a thread, shared memory a block*, each from the least to the most; *m* says that all of
them use matrix instructions. A launch that needs memory for what does not fit its registers spills: it may not be
chosen, and makes the check fail, whichever version of triton compiles it.
"""


def compiled_page(table: CompiledTable) -> str:
    """Return the page in Markdown."""
    groups: dict[tuple[str, str], dict[str, list[CompiledCase]]] = defaultdict(lambda: defaultdict(list))
    for case in table.cases():
        groups[case.triton, case.name.split(" ")[0]][case.architecture].append(case)
    parts = [_INTRODUCTION]
    for version in sorted({version for version, _ in groups}, reverse=True):
        parts.append(f"## triton {version}\n")
        parts.append(_coverage(table, version))
        parts.append("| kernel | " + " | ".join(TARGETS) + " |")
        parts.append("| --- " * (len(TARGETS) + 1) + "|")
        for (found, kernel), cases in sorted(groups.items()):
            if found == version:
                cells = [_cell(cases[name]) if name in cases else "-" for name in TARGETS]
                parts.append(f"| `{kernel}` | " + " | ".join(cells) + " |")
        parts.append("")
        parts.append(_spills(case for (found, _), cases in groups.items() if found == version for case in _all(cases)))
    return "\n".join(parts)


def _coverage(table: CompiledTable, version: str) -> str:
    entries = [entry for cases in table.entries.values() for entry in cases.values()]
    compiled = sum(version in entry.usages for entry in entries)
    return f"Compiled with it: {compiled} of {len(entries)} launches.\n"


def _cell(cases: list[CompiledCase]) -> str:
    registers = _range([case.usage.registers for case in cases])
    kibibytes = _range([-(-case.usage.shared_bytes // 1024) for case in cases])
    matrix = ", m" if all(case.usage.matrix_instructions for case in cases) else ""
    return f"{len(cases)}: {registers}, {kibibytes} KiB{matrix}"


def _range(values: list[int]) -> str:
    return f"{min(values)}" if min(values) == max(values) else f"{min(values)}–{max(values)}"


def _all(cases: dict[str, list[CompiledCase]]) -> Iterable[CompiledCase]:
    return (case for several in cases.values() for case in several)


def _spills(cases: Iterable[CompiledCase]) -> str:
    spilling = [case for case in cases if case.usage.spill_bytes]
    if not spilling:
        return "No launch spills.\n"
    lines = [f"- {case.name} on {case.architecture}: {case.usage.spill_bytes} bytes a thread" for case in spilling]
    return "\n".join(["Launches that spill:", "", *lines, ""])
