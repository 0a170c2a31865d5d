"""Progress bars on a terminal's stderr; nothing where nobody looks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(label: str, *, is_wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the block runs; yields ``report(done, total)``."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (is_wanted and console.is_terminal)) as bars:
        bar = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
