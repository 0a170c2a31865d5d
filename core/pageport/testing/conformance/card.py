"""``ScoreCard``: what came of a run, for a person at a terminal, for a pipe, and as JSON."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pageport.testing.conformance.check import Level, Outcome, Status


@dataclass(frozen=True, kw_only=True)
class LevelScore:
    """One level's counts; ``passed`` leaves out declared deviations."""

    level: Level
    total: int
    passed: int
    deviations: int
    failed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """The outcomes of one run, and what it takes to repeat it."""

    name: str
    seed: int
    outcomes: Sequence[Outcome]
    ordinal: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    is_simulated: bool = False

    @property
    def is_passed(self) -> bool:
        """Whether nothing failed; no outcome at all is no pass."""
        return bool(self.outcomes) and not self.failures

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status is Status.FAILED]

    @property
    def levels(self) -> list[LevelScore]:
        return [self._score(level) for level in sorted({outcome.level for outcome in self.outcomes})]

    def reproduction(self, check: str) -> str:
        """Return the command that runs one check with the same numbers."""
        parts = ["pageport", "conformance", self.name]
        if self.is_simulated:
            parts += ["--simulate"]
        if self.ordinal:
            parts += ["--device", str(self.ordinal)]
        for key, value in self.options.items():
            parts += ["--backend-option", f"{key}={value}"]
        return f"{shlex.join(parts)} --check {shlex.quote(check)} --seed {self.seed}"

    def failure_report(self) -> str:
        """Return each failed check, why, and its reproduction, as plain lines."""
        return "\n".join(
            f"{outcome.name}\n    {outcome.message}\n    {self.reproduction(outcome.name)}" for outcome in self.failures
        )

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON's types."""
        return {
            "backend": self.name,
            "device": self.ordinal,
            "simulated": self.is_simulated,
            "options": dict(self.options),
            "seed": self.seed,
            "passed": self.is_passed,
            "levels": [
                {
                    "level": int(score.level),
                    "title": score.level.title,
                    "total": score.total,
                    "passed": score.passed,
                    "deviations": score.deviations,
                    "failed": score.failed,
                    "seconds": round(score.seconds, 3),
                }
                for score in self.levels
            ],
            "checks": [
                {
                    "level": int(outcome.level),
                    "name": outcome.name,
                    "status": outcome.status.value,
                    "seconds": round(outcome.seconds, 3),
                    "message": outcome.message,
                    "measured": outcome.measured,
                    "reproduction": self.reproduction(outcome.name),
                }
                for outcome in self.outcomes
            ],
        }

    def print(self, console: Console) -> None:
        """Print the table of levels, then whatever needs a reader: failures, deviations, measured figures."""
        if self.outcomes:
            console.print(self._table())
        for outcome in self.failures:
            _print_lines(console, Text(f"\nfailed: {outcome.name}", style="bold red"), outcome.message)
            _print_lines(console, Text(f"  {self.reproduction(outcome.name)}", style="cyan"))
        deviations = [outcome for outcome in self.outcomes if outcome.status is Status.DEVIATES]
        _print_section(console, "declared deviations", [(outcome.name, outcome.message) for outcome in deviations])
        measured = [outcome for outcome in self.outcomes if outcome.measured and outcome.level is Level.PERFORMANCE]
        _print_section(console, "measured", [(outcome.name, outcome.measured) for outcome in measured])
        _print_lines(console, Text(f"\n{self.verdict}", style="bold green" if self.is_passed else "bold red"))

    @property
    def verdict(self) -> str:
        """Say in one line what came of it."""
        if not self.outcomes:
            return "no check was run: does --check name one?"
        name = f"{self.name}, simulated on the host," if self.is_simulated else self.name
        if self.failures:
            return f"{name} fails {len(self.failures)} of {len(self.outcomes)} checks."
        deviations = sum(score.deviations for score in self.levels)
        besides = f" besides {deviations} declared deviations" if deviations else ""
        return f"{name} passes {len(self.outcomes) - deviations} checks{besides}."

    def _score(self, level: Level) -> LevelScore:
        outcomes = [outcome for outcome in self.outcomes if outcome.level is level]
        counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
        return LevelScore(
            level=level,
            total=len(outcomes),
            passed=counts[Status.PASSED],
            deviations=counts[Status.DEVIATES],
            failed=counts[Status.FAILED],
            seconds=sum(outcome.seconds for outcome in outcomes),
        )

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("level")
        for header in ("passed", "deviations", "failed", "seconds"):
            table.add_column(header, justify="right")
        for score in self.levels:
            table.add_row(
                f"{int(score.level)} {score.level.title}",
                f"{score.passed}/{score.total}",
                Text(str(score.deviations or "-"), style="yellow" if score.deviations else "dim"),
                Text(str(score.failed or "-"), style="bold red" if score.failed else "dim"),
                f"{score.seconds:.1f}",
            )
        return table


def _print_section(console: Console, title: str, lines: Sequence[tuple[str, str]]) -> None:
    if lines:
        _print_lines(console, Text(f"\n{title}", style="bold"))
    for name, text in lines:
        _print_lines(console, Text(f"  {name}: {text}"))


def _print_lines(console: Console, *lines: Text | str) -> None:
    """Print without markup and without breaking lines: a command that is copied stays whole."""
    for line in lines:
        console.print(Text(f"  {line}") if isinstance(line, str) else line, soft_wrap=True)
