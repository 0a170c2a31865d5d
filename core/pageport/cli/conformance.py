"""``pageport conformance``: judge a backend and print the score card."""

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pageport.backend.discovery import discover, installed, select
from pageport.engine.backend_options import read_backend_options
from pageport.engine.environment import set_environment
from pageport.errors import ConfigurationError

if TYPE_CHECKING:
    from pageport.testing.conformance.check import Level, Outcome


def conformance(
    name: str,
    *,
    levels: Sequence[int],
    check: str | None,
    seed: int | None,
    json_file: Path | None,
    device: int,
    backend_options: Sequence[str],
    simulates: bool = False,
) -> bool:
    """Run the checks, print the card, write the JSON file; return whether nothing failed.

    Args:
        simulates: judge the device as it is simulated on the host, where none is needed.
    """
    options = read_backend_options(backend_options)
    backend = installed(discover(), name) if simulates else select(discover(), name).backend
    set_environment(backend)
    # Only now, with the environment prepared, is torch imported.
    from pageport.testing.conformance import Context, run_suite
    from pageport.testing.conformance.card import ScoreCard

    chosen_levels = _levels(levels)
    seed = secrets.randbelow(2**31) if seed is None else seed
    console = Console()
    # Before anything runs: a check that ends the process can then be repeated, too.
    which = "simulated on the host" if simulates else f"device {device}"
    console.print(f"conformance of {backend.name}, {which}, seed {seed}", highlight=False)
    context = Context(backend, ordinal=device, options=options, seed=seed, is_simulated=simulates)
    try:
        if simulates:  # a backend that cannot be simulated says so once, and not in every check
            context.open_device().close()
        with _progress() as report:
            outcomes = run_suite(context, chosen_levels, only=check, on_outcome=report)
    finally:
        context.close()
    card = ScoreCard(
        name=backend.name, seed=seed, outcomes=outcomes, ordinal=device, options=options, is_simulated=simulates
    )
    card.print(console)
    if json_file is not None:
        _write(json_file, card.as_json())
    return card.is_passed


@contextmanager
def _progress() -> "Iterator[Callable[[Outcome], None]]":
    """Show on a terminal's stderr how far the run is; nothing where nobody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda outcome: None
        return
    count = 0
    with console.status("opening the device") as status:

        def report(outcome: "Outcome") -> None:
            nonlocal count
            count += 1
            status.update(f"level {int(outcome.level)}, {count} checks done, the last one: {outcome.name}")

        yield report


def _write(path: Path, content: object) -> None:
    try:
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--json {path} cannot be written: {error}.") from error


def _levels(numbers: Sequence[int]) -> "list[Level]":
    from pageport.testing.conformance import Level

    unknown = [number for number in numbers if number not in list(Level)]
    if unknown:
        known = ", ".join(f"{int(level)} {level.title}" for level in Level)
        raise ConfigurationError(f"There is no level {unknown[0]}. Levels: {known}.")
    return [level for level in Level if level in numbers] or list(Level)
