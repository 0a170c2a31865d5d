"""Level 0: what is known of a backend before a model is loaded: its name, probe, options and capabilities."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pageport.backend.discovery import is_served
from pageport.backend.interface import INTERFACE, Deviation, Probe
from pageport.backend.op_table import compile_ops
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport.testing.conformance import probe_process
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.declared import capability_checks

PROBE_LIMIT_MS = 100
PROBE_ROUNDS = 5
# A "bare" environment keeps this: some Pythons do not start without it.
KEPT = ("LD_LIBRARY_PATH",)


def checks(context: Context) -> Iterator[Check]:
    """Yield the checks; none depends on what the device declares."""
    yield from (Check(Level.DISCOVERY, f"discovery/{name}", run) for name, run in CHECKS.items())
    yield from capability_checks()


def check_name(context: Context) -> None:
    """The name is what people type after ``--backend``."""
    name = context.backend.name
    assert isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_-]*", name), (
        f"the backend's name is {name!r}: it is typed on a command line, so use lower-case letters, digits, - and _."
    )
    assert name != "auto", "the backend's name is 'auto', which means the choice among all backends."


def check_interface(context: Context) -> None:
    """The interface version it was written for is served here."""
    assert is_served(context.backend.interface), (
        f"the backend was written for interface {context.backend.interface!r}; this pageport serves {INTERFACE}."
    )


def check_class_attributes(context: Context) -> None:
    """Priority, environment and deviations have the types the interface names."""
    backend = context.backend
    assert type(backend.priority) is int, f"priority is {backend.priority!r}; `--backend auto` compares whole numbers."
    assert _maps_text_to_text(backend.environment), (
        f"environment is {backend.environment!r}; it maps names of variables to texts."
    )
    for deviation in backend.deviations:
        assert isinstance(deviation, Deviation), f"deviations holds {deviation!r}, which is no Deviation."
        assert deviation.kind in ("not_implemented", "not_available", "never"), (
            f"the deviation for {deviation.check!r} has the kind {deviation.kind!r}; "
            "use not_implemented, not_available or never."
        )
        assert deviation.reason.strip(), f"the deviation for {deviation.check!r} gives no reason."


def check_probe(context: Context) -> None:
    """``probe`` returns a count, and a reason where the count is 0."""
    probe = _probe(context)
    assert isinstance(probe, Probe), f"probe() returned {probe!r} and not a Probe."
    assert type(probe.count) is int and probe.count >= 0, f"probe().count is {probe.count!r}, not a number of devices."
    assert probe.count or probe.reason.strip(), "probe().count is 0 without a reason: say what is missing."
    assert _maps_text_to_text(probe.details), f"probe().details is {probe.details!r}; it maps texts to texts."
    assert context.is_simulated or context.ordinal < probe.count, (
        f"probe() counts {probe.count} devices, so device {context.ordinal} cannot be judged: {probe.reason}"
    )


def check_probe_time(context: Context) -> None:
    """``probe`` is quick: every start-up and every ``pageport backends`` calls the probe of every backend."""
    times = []
    for _ in range(PROBE_ROUNDS):
        start = time.perf_counter()
        _probe(context)
        times.append((time.perf_counter() - start) * 1e3)
    context.measured = f"{statistics.median(times):.2f} ms"
    # The median: other work on the machine may delay one call.
    assert statistics.median(times) < PROBE_LIMIT_MS, (
        f"probe() takes {statistics.median(times):.0f} ms; under {PROBE_LIMIT_MS} ms is asked for. "
        "Does it start a program, wait for a driver, or open a device?"
    )


def check_probe_alone(context: Context) -> None:
    """In a fresh process, importing the plugin and probing loads no framework and holds no device."""
    report = _probe_in_process(context, os.environ)
    assert not report["raised"], f"probe() raised {report['raised']} in a fresh process; a probe never raises."
    assert not report["heavy_modules"], (
        f"importing the plugin and probing imports {', '.join(report['heavy_modules'])}, which takes seconds: "
        "import it in open()."
    )
    assert not report["held_nodes"], (
        f"after probe() the process holds {', '.join(report['held_nodes'])} open: did the probe open a device "
        "context? Close what a probe opens; only open() opens a device."
    )
    milliseconds = report["import_ms"] + report["probe_ms"]
    context.measured = f"{milliseconds:.1f} ms with import"
    assert milliseconds < PROBE_LIMIT_MS, (
        f"importing the plugin takes {report['import_ms']:.0f} ms of processor time and the first probe() "
        f"{report['probe_ms']:.0f} ms; under {PROBE_LIMIT_MS} ms is asked for. Move heavy imports into open()."
    )


def check_probe_in_bare_environment(context: Context) -> None:
    """``probe`` does not raise where no environment variable is set."""
    report = _probe_in_process(context, {name: os.environ[name] for name in KEPT if name in os.environ})
    assert not report["raised"], (
        f"probe() raised {report['raised']} in a process without environment variables; a probe never raises, "
        "it returns a count of 0 and the reason."
    )


def check_open(context: Context) -> None:
    """``open`` gives a device; a second one may be open beside the first, and closing it leaves the first alone."""
    first = context.device
    assert isinstance(first.torch_device, torch.device), f"torch_device is {first.torch_device!r}, no torch.device."
    second = context.open_device()
    second.close()
    first.synchronize()
    assert first.memory().total > 0, "after another device was opened and closed, the first one has no memory."


def check_unknown_option(context: Context) -> None:
    """A misspelt option is an error that names it."""
    option = "no_such_option"
    try:
        device = context.open_device(**{option: "1"})
    except ConfigurationError as error:
        assert option in str(error), f"the error for the unknown option {option!r} does not name it: {error}"
        return
    device.close()
    raise AssertionError(
        f"open() took the unknown option {option!r} without a word: raise ConfigurationError for what is misspelt."
    )


def check_unknown_device(context: Context) -> None:
    """An ordinal that does not exist is an error that names it."""
    for ordinal in (_probe(context).count, _probe(context).count + 1000, -1):
        try:
            device = context.backend().open(ordinal, context.options)
        except BackendUnavailable as error:
            assert str(ordinal) in str(error), f"the error for device {ordinal} does not name it: {error}"
            continue
        device.close()
        raise AssertionError(f"open() opened device {ordinal}, though probe() counts {_probe(context).count}.")


def check_op_table(context: Context) -> None:
    """Overrides and declared features agree, and what serves each op can be found where the table says."""
    table = compile_ops(context.device)
    for name, served in table.implementations.items():
        module, _, qualname = served.where.partition(":")
        found: Any = sys.modules.get(module)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        # A function made in a function cannot be looked up; its module can.
        assert found is not None or "<locals>" in qualname, (
            f"op {name} is said to be served by {served.where}, where there is nothing: "
            "did a decorator lose __module__ or __qualname__ (functools.wraps)?"
        )


CHECKS: Mapping[str, Callable[[Context], None]] = {
    "name": check_name,
    "interface version": check_interface,
    "class attributes": check_class_attributes,
    "probe": check_probe,
    "probe time": check_probe_time,
    "probe in a fresh process": check_probe_alone,
    "probe in a bare environment": check_probe_in_bare_environment,
    "open": check_open,
    "unknown option": check_unknown_option,
    "unknown device": check_unknown_device,
    "op table": check_op_table,
}


def _probe(context: Context) -> Probe:
    try:
        return context.backend.probe()
    except Exception as error:
        raise AssertionError(
            f"probe() raised {type(error).__name__}: {error}. A probe never raises: "
            "it returns a count of 0 and the reason."
        ) from error


def _probe_in_process(context: Context, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run ``probe_process`` with this process's import path and only ``environ`` as its environment."""
    backend = context.backend
    assert "<locals>" not in backend.__qualname__, (
        f"{backend.__qualname__} is defined inside a function: no other process can import it. Define it in a module."
    )
    file = getattr(sys.modules.get(backend.__module__), "__file__", None) or ""
    command = [sys.executable, "-P", probe_process.__file__, backend.__module__, file, backend.__qualname__]
    paths = {"PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path)}
    done = subprocess.run(command, env={**environ, **paths}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().rpartition("\n")[2] or "no output"
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        raise AssertionError(f"a process that imports the plugin and probes ended with {how}: {last}")
    report: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return report


def _maps_text_to_text(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for pair in value.items() for text in pair)
