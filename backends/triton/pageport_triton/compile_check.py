"""Compile every launch that the tables of configurations may choose, for architectures that are not here.

    python -m pageport_triton.compile_check --targets sm90,gfx942 --kernels norms,rope --write

Exits with 1 where a configuration spills, takes more shared memory than there is, or multiplies matrices without
matrix instructions. ``--write`` puts the figures into the committed table and its readable form. Processes of their own
compile, a few cases at a time; what they found is kept in the user's cache folder, by a hash of all it depends on.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import NamedTuple

from pageport_triton import resource_usage
from pageport_triton.compiled_case import KERNEL_MODULES, CompiledCase, case_name, cases_of
from pageport_triton.compiled_page import compiled_page
from pageport_triton.compiled_table import CompiledTable
from pageport_triton.kernel_hash import kernel_hash
from pageport_triton.targets import TARGETS

TABLE = Path(__file__).parents[1] / "compiled.json"
PAGE = Path(__file__).parents[3] / "docs" / "triton_kernels.md"
# Cases that a process compiles; starting it takes about as long as one of them.
_BATCH = 40


class Job(NamedTuple):
    """One case, by name."""

    architecture: str
    module: str
    name: str


def check_cases(
    architectures: Iterable[str],
    modules: Sequence[str] = KERNEL_MODULES,
    names: Collection[str] | None = None,
    processes: int = 1,
) -> Iterator[CompiledCase]:
    """Yield what every case takes, from the cache or compiled now.

    Args:
        names: only cases called so (``case_name``); default: all.
        processes: how many compile at a time.

    Raises:
        RuntimeError: a case does not compile; with the compiler's words.
    """
    missing = []
    for architecture, module in product(architectures, modules):
        for case in cases_of(module, architecture):
            name = case_name(module, case)
            if names is not None and name not in names:
                continue
            cached = _cache_file(architecture, name, kernel_hash(case))
            if cached.exists():
                yield CompiledCase.from_json(json.loads(cached.read_text()))
            else:
                missing.append(Job(architecture, module, name))
    batches = [missing[start : start + _BATCH] for start in range(0, len(missing), _BATCH)]
    with ThreadPoolExecutor(processes) as pool:
        for compiled in pool.map(_run, batches):
            yield from compiled


def outdated(table: CompiledTable, architecture: str, modules: Sequence[str] = KERNEL_MODULES) -> Iterator[str]:
    """Name cases whose source or specialisation the table does not have, and those that are gone."""
    entries = table.entries.get(architecture, {})
    cases = ((module, case) for module in modules for case in cases_of(module, architecture))
    current = {case_name(module, case): kernel_hash(case) for module, case in cases}
    for name, value in current.items():
        if name not in entries or entries[name].hash != value:
            yield name
    for name in entries:
        if name.split("/")[0] in modules and name not in current:
            yield name


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pageport_triton.compile_check", description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS), help="architectures, separated by commas")
    parser.add_argument("--kernels", default=",".join(KERNEL_MODULES), help="kernel modules, separated by commas")
    parser.add_argument("--processes", type=int, default=2, help="how many compile at a time")
    parser.add_argument("--write", action="store_true", help="put the figures into the committed table")
    options = parser.parse_args(arguments)
    architectures, modules = options.targets.split(","), options.kernels.split(",")
    compiled = []
    for case in check_cases(architectures, modules, processes=options.processes):
        print(f"{case.architecture:8} {case.name}: {_described(case)}", flush=True)
        compiled.append(case)
    if options.write:
        _write(compiled, architectures, modules)
    faults = [(case, fault) for case in compiled for fault in case.faults()]
    for case, fault in faults:
        print(f"{case.architecture}: {case.name} {fault}", file=sys.stderr)
    return 1 if faults else 0


def _write(compiled: Sequence[CompiledCase], architectures: Sequence[str], modules: Sequence[str]) -> None:
    table = CompiledTable.read(TABLE)
    table.add(compiled)
    for architecture in architectures:
        names = {case.name for case in compiled if case.architecture == architecture}
        others = {name for name in table.entries.get(architecture, {}) if name.split("/")[0] not in modules}
        table.keep(architecture, names | others)
    table.write(TABLE)
    PAGE.write_text(compiled_page(table))


def _run(jobs: Sequence[Job]) -> list[CompiledCase]:
    """Compile in a process of its own; what is done stays done if it is stopped."""
    with tempfile.TemporaryDirectory(prefix="pageport-triton-") as folder, tempfile.TemporaryFile("w+") as errors:
        environment = {
            "TRITON_CACHE_DIR": folder,
            **os.environ,
            "TRITON_DEFAULT_FP_FUSION": "1",
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("TRITON_INTERPRET", None)
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        compiled = []
        with subprocess.Popen(
            [sys.executable, "-m", "pageport_triton.compile_process"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            json.dump(jobs, process.stdin)
            process.stdin.close()
            for line in process.stdout:
                compiled.append(CompiledCase.from_json(json.loads(line)))
                _store(compiled[-1])
        errors.seek(0)
        words = errors.read()[-4000:]
    if len(compiled) != len(jobs):
        failed = jobs[len(compiled)]
        raise RuntimeError(f"{failed.name} does not compile for {failed.architecture}:\n{words}")
    return compiled


def _store(case: CompiledCase) -> None:
    path = _cache_file(case.architecture, case.name, case.hash)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(asdict(case), file)
    Path(file.name).replace(path)


def _cache_file(architecture: str, name: str, source_hash: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    parts = (architecture, name, source_hash, version("triton"), Path(resource_usage.__file__).read_text())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return folder / "pageport" / "triton_compiled" / f"{key}.json"


def _described(case: CompiledCase) -> str:
    usage = case.usage
    occupancy = "" if usage.occupancy is None else f", {usage.occupancy} waves"
    return (
        f"{usage.registers} registers, {usage.spill_bytes} bytes spilt, {usage.shared_bytes} bytes shared, "
        f"{usage.matrix_instructions} matrix instructions{occupancy}"
    )


if __name__ == "__main__":
    sys.exit(main())
