"""Run as a program, by its path: import a backend's plugin, probe, and print what that did as one JSON object.

A process of its own, because whoever runs the suite has torch loaded already.
"""

import importlib
import importlib.util
import json
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

# Frameworks that take seconds to load; a probe asks the driver or the file system instead.
HEAVY_MODULES = ("torch", "jax", "tensorflow", "transformers")
# Nodes under /dev that are no device.
HARMLESS_NODES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/", "/dev/shm/")


def main(module_name: str, module_file: str, qualname: str) -> None:
    """Probe the class ``qualname`` of a module, found by name or else by file."""
    # What every plugin imports is not counted.
    importlib.import_module("pageport.backend")
    nodes_before = held_nodes()
    start = time.process_time()
    found: object = _load(module_name, module_file)
    _load_entry_points(module_name)
    for name in qualname.split("."):
        found = getattr(found, name)
    imported = time.process_time()
    problem = ""
    try:
        found.probe()  # type: ignore[attr-defined]
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    report = {
        "raised": problem,
        "heavy_modules": [name for name in HEAVY_MODULES if name in sys.modules],
        "held_nodes": sorted(held_nodes() - nodes_before),
        "import_ms": (imported - start) * 1e3,
        "probe_ms": (time.process_time() - imported) * 1e3,
    }
    print(json.dumps(report))


def held_nodes() -> set[str]:
    """Return the device nodes this process has open or mapped; none where there is no /proc."""
    held = set()
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            held.add(str(entry.readlink()))
        except OSError:  # the folder's own descriptor is closed by now
            continue
    maps = Path("/proc/self/maps")
    if maps.exists():
        held |= {fields[5] for line in maps.read_text().splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    return {node for node in held if node.startswith("/dev/") and not node.startswith(HARMLESS_NODES)}


def _load(name: str, file: str) -> ModuleType:
    if importlib.util.find_spec(name.partition(".")[0]) is not None:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is neither importable nor a Python file ({file}).")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_entry_points(module_name: str) -> None:
    """Import the plugin modules of the class's own package, which discovery imports too."""
    package = module_name.partition(".")[0]
    for point in entry_points(group="pageport.backends"):
        if point.module.partition(".")[0] == package:
            point.load()


if __name__ == "__main__":
    main(*sys.argv[1:])
