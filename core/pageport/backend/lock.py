"""The interface as text: public names, fields, signatures and defaults, compared with ``interface.lock`` in tests.

It is read from the sources, so that rendering it imports no torch and does not depend on the Python version.
"""

import argparse
import ast
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path

from pageport.backend.interface import INTERFACE
from pageport.backend.interface_change import Version, judge, next_version, version_of

PACKAGE = Path(__file__).parents[1]
LOCK_FILE = PACKAGE / "backend" / "interface.lock"
BUILD_CAPSULE = "python tests/time_capsules/build.py"
# Names that backends import from elsewhere than `pageport.backend`, or go by.
OTHER_NAMES = {
    "pageport.backend.hook": ["GROUP"],
    "pageport.backend.device": ["Device"],
    "pageport.backend.op_table": ["METHODS", "OPTIONAL_OPS"],
    "pageport.backend.coverage": ["check_attention", "check_kv"],
    "pageport.backend.batch": ["AttentionBatch", "AttentionMirror"],
    "pageport.backend.choice": ["Choice", "ChoiceBatch", "Rows"],
    "pageport.backend.weights": ["BLOCK_SCHEMES", "PLAIN_SCHEMES"],
    "pageport.backend.decoder_weights": ["DecoderWeights", "LayerWeights", "NormWeights", "Projection"],
    "pageport.backend.program": ["Bucket", "Compilation", "ModelProgram", "ProgramOutput", "ProgramStep"],
    # What the inherited ops store: a device that replaces only attention, or takes over matrices, reads it.
    "pageport.backend.reference.kv": ["ReferenceKVPool"],
    "pageport.backend.reference.weights": ["ReferenceWeight"],
    # What `Device.compile_graph` compiles.
    "pageport.backend.reference.static_decoder": ["GraphInputs", "GraphOutputs", "StaticGraph"],
    "pageport.backend.reference.static_choose": ["ChoiceTensors"],
    "pageport.errors": [
        "BackendError",
        "BackendUnavailable",
        "ConfigurationError",
        "OutOfMemory",
        "PageportError",
        "UnsupportedFeature",
    ],
}


def public_names() -> dict[str, list[str]]:
    """Return the interface's names by the module they are imported from."""
    return {"pageport.backend": sorted(_exports()), **{module: sorted(names) for module, names in OTHER_NAMES.items()}}


def render() -> str:
    """Return the interface's text."""
    lines = [f"interface {dotted(INTERFACE)}", ""]
    exports = _exports()
    for module, names in public_names().items():
        lines += [f"from {module}", ""]
        for name in names:
            file = _file(exports[name] if module == "pageport.backend" else module)
            lines += [*_rendered(_definitions(file)[name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def find_fault(now: str, committed: str, frozen: Mapping[Version, str]) -> str | None:
    """Say what is wrong with the interface as it is now, and what to do; None: nothing is.

    Args:
        committed: the lock file.
        frozen: the texts of versions that were published, which every time capsule keeps.
    """
    version = version_of(now)
    last = max(frozen, default=None)
    if last is not None:
        verdict = judge(frozen[last], now)
        needed = next_version(last, verdict.kind)
        if version < needed:
            return "\n".join(
                [
                    f"The interface says that it is {dotted(version)}, but is not what {dotted(last)} was frozen as:",
                    *_shown(frozen[last], now, f"as of {dotted(last)}"),
                    f"This is a {verdict.kind} change. Undo it, or make it interface {dotted(needed)}:",
                    *_steps(needed),
                ]
            )
    if committed != now:
        kind = judge(committed, now).kind
        meaning = "in nothing but its order" if kind == "same" else f"by a {kind} change"
        return "\n".join(
            [
                f"The interface is not what {LOCK_FILE.name} says; it differs {meaning}:",
                *_shown(committed, now, LOCK_FILE.name),
                "If that is on purpose:",
                *_steps(None),
            ]
        )
    if version >= (1, 0) and version not in frozen:
        return f"Interface {dotted(version)} has no time capsule yet. Run: {BUILD_CAPSULE}"
    return None


def dotted(version: Version) -> str:
    """Return a version as it is written."""
    return ".".join(map(str, version))


def _shown(old: str, new: str, name: str) -> Iterator[str]:
    """Yield the differences as a diff, and in words."""
    yield ""
    yield from unified_diff(old.splitlines(), new.splitlines(), name, "as it is now", lineterm="", n=2)
    yield ""
    yield from (f"{change.kind}: {change.what}" for change in judge(old, new).changes)
    yield ""


def _steps(version: Version | None) -> list[str]:
    """Return what is to be done, as commands where there are any; with a version, that one is new."""
    steps = ["python -m pageport.backend.lock --write", "add a line to CHANGELOG.md"]
    if version is not None:
        steps.insert(0, f"write INTERFACE = {version} in core/pageport/backend/interface.py")
        steps.append(f"{BUILD_CAPSULE}   # after plugins/example says interface = {version}")
        if version[1] == 0:
            steps.append(f"keep plugins of {version[0] - 1}.x working: their time capsules are run against this core")
    return [f"  {number}. {step}" for number, step in enumerate(steps, 1)]


def main() -> None:
    """Print the text, or write the lock file."""
    parser = argparse.ArgumentParser(prog="python -m pageport.backend.lock", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {LOCK_FILE.name} instead of printing")
    if parser.parse_args().write:
        LOCK_FILE.write_text(render())
    else:
        print(render(), end="")


def _exports() -> dict[str, str]:
    """Return what ``pageport.backend`` exports, and the module each name comes from."""
    return {
        alias.name: node.module
        for node in ast.parse((PACKAGE / "backend" / "__init__.py").read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _file(module: str) -> Path:
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _definitions(path: Path) -> dict[str, ast.stmt]:
    definitions: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        for name in bound_names(node):
            definitions[name] = node
    return definitions


def bound_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef():
            return [node.name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _rendered(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef():
            yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
            bases = ", ".join(ast.unparse(base) for base in node.bases)
            yield f"class {node.name}({bases})" if bases else f"class {node.name}"
            for member in node.body:
                if any(name == "__init__" or not name.startswith("_") for name in bound_names(member)):
                    yield from (f"    {line}" for line in _rendered(member))
        case ast.FunctionDef():
            yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"def {node.name}({ast.unparse(node.args)}){returns}"
        case _:
            yield ast.unparse(node)


if __name__ == "__main__":
    main()
