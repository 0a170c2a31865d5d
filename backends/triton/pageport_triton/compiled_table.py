"""``CompiledTable``: the committed file that says what every kernel takes on every architecture."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from pageport_triton.compiled_case import CompiledCase
from pageport_triton.resource_usage import ResourceUsage

COLUMNS = tuple(field.name for field in fields(ResourceUsage))


@dataclass(frozen=True)
class Entry:
    """One case: the hash of its source and specialisation, and its usage by version of triton."""

    hash: str
    has_matrix_product: bool
    usages: Mapping[str, ResourceUsage]


class CompiledTable:
    """Entries by architecture and name of a case."""

    def __init__(self, entries: Mapping[str, Mapping[str, Entry]]) -> None:
        self.entries = {architecture: dict(cases) for architecture, cases in entries.items()}

    @classmethod
    def read(cls, path: Path) -> "CompiledTable":
        """Read the committed file; without one the table is empty."""
        if not path.exists():
            return cls({})
        stored = json.loads(path.read_text())
        return cls(
            {
                architecture: {name: _entry(row) for name, row in cases.items()}
                for architecture, cases in stored["architectures"].items()
            }
        )

    def write(self, path: Path) -> None:
        """Write one line a case, sorted, so that a change shows as the lines it changes."""
        lines = ["{", f' "columns": {json.dumps(COLUMNS)},', ' "architectures": {']
        blocks = []
        for architecture, cases in sorted(self.entries.items()):
            rows = [f"   {json.dumps(name)}: {json.dumps(_row(entry))}" for name, entry in sorted(cases.items())]
            blocks.append(f"  {json.dumps(architecture)}: {{\n" + ",\n".join(rows) + "\n  }")
        path.write_text("\n".join([*lines, ",\n".join(blocks), " }", "}"]) + "\n")

    def add(self, compiled: Iterable[CompiledCase]) -> None:
        """Put in what was compiled; what another version of triton made of the same source stays."""
        for case in compiled:
            cases = self.entries.setdefault(case.architecture, {})
            old = cases.get(case.name)
            usages = dict(old.usages) if old is not None and old.hash == case.hash else {}
            cases[case.name] = Entry(case.hash, case.has_matrix_product, {**usages, case.triton: case.usage})

    def keep(self, architecture: str, names: Iterable[str]) -> None:
        """Drop an architecture's cases that are no longer there."""
        kept = set(names)
        cases = self.entries.get(architecture, {})
        self.entries[architecture] = {name: entry for name, entry in cases.items() if name in kept}

    @property
    def newest(self) -> str:
        """The newest version of triton in the table: it has compiled every case."""
        return max((case.triton for case in self.cases()), key=lambda version: [*map(int, version.split("."))])

    def cases(self) -> Iterable[CompiledCase]:
        """Yield every case once for each version of triton that compiled it."""
        for architecture, entries in self.entries.items():
            for name, entry in entries.items():
                for version, usage in entry.usages.items():
                    yield CompiledCase(
                        architecture=architecture,
                        name=name,
                        hash=entry.hash,
                        triton=version,
                        has_matrix_product=entry.has_matrix_product,
                        usage=usage,
                    )


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        row["hash"],
        row["has_matrix_product"],
        {version: ResourceUsage(*figures) for version, figures in row["triton"].items()},
    )


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "hash": entry.hash,
        "has_matrix_product": entry.has_matrix_product,
        "triton": {version: astuple(usage) for version, usage in sorted(entry.usages.items())},
    }
