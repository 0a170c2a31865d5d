"""``pageport backends`` and ``pageport backends explain``."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from pageport.backend.discovery import discover
from pageport.backend.explain import Programs, backend_rows
from pageport.backend.explain import explain as explain_backend

GIB = 1 << 30


def print_backends() -> None:
    """Print every backend and why it is, or is not, usable here."""
    table = _table("backend", "usable", "devices", "from", "why")
    for row in backend_rows(discover()):
        table.add_row(row.name, "yes" if row.is_usable else "no", str(row.devices), row.distribution, row.reason)
    Console().print(table)


def print_explanation(name: str, device: int, options: Mapping[str, str], *, simulates: bool) -> None:
    """Print what a device can do and which implementation serves each op."""
    explanation = explain_backend(discover(), name, device, options, simulates=simulates)
    console = Console()
    memory = explanation.memory
    console.print("\n".join(explanation.report))
    console.print(f"memory: {memory.free / GIB:.1f} GiB free of {memory.total / GIB:.1f} GiB\n")
    if explanation.programs is not None:
        console.print(_programs(explanation.programs))
    capabilities = _table("capability", "")
    for capability in explanation.capabilities:
        capabilities.add_row(*capability)
    ops = _table("op", "served by", "where")
    for op in explanation.ops:
        ops.add_row(op.name + (" (hot)" if op.is_hot else ""), op.source, op.where)
    weights = _table("stored weights", "")
    for weight in explanation.weights:
        weights.add_row(*weight)
    for table in (capabilities, ops, weights):
        console.print(table)


def _programs(programs: Programs) -> Table:
    table = _table("runs as whole programs", f"{programs.count} shapes")
    table.add_row("built by", programs.built_by)
    table.add_row("compiled by", programs.compiled_by)
    table.add_row("one prompt's next", f"{_listed(programs.prompts)} tokens")
    table.add_row("decodes", f"of {_listed(programs.decodes)} requests")
    contexts = f"of {_listed(programs.contexts)} tokens" if programs.contexts else "as long as the longest served"
    table.add_row("contexts", contexts)
    return table


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _table(*headers: str) -> Table:
    return Table(*headers, box=None, pad_edge=False, header_style="bold")
