"""``pageport models``: the models that packages ship."""

from rich.console import Console
from rich.table import Table

from pageport.models.packaged import fetch, list_packaged


def print_models() -> None:
    """Print the table of packaged models."""
    table = Table("name", "package", "size", "here", box=None, pad_edge=False)
    for model in list_packaged():
        table.add_row(model.name, model.package, f"{model.size_mb} MB", "yes" if model.is_present else "no")
    console = Console()
    console.print(table)
    console.print("Fetch one with: pageport models get NAME. Any folder, .gguf file or hub id works as --model too.")


def get(name: str) -> None:
    """Fetch one, and say where it is."""
    print(fetch(name, print))
