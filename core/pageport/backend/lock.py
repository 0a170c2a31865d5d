"""The interface as text: public names, fields, signatures and defaults, compared with ``interface.lock`` in tests.

It is read from the sources, so that rendering it imports no torch and does not depend on the Python version.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

from pageport.backend.interface import INTERFACE

FOLDER = Path(__file__).parent
LOCK_FILE = FOLDER / "interface.lock"
# Names that backends import from elsewhere than `pageport.backend`.
DEVICE_NAMES = {
    "device.py": ["Device"],
    "batch.py": ["AttentionBatch", "AttentionMirror"],
    "choice.py": ["Choice", "ChoiceBatch"],
    # What the inherited ops store: a device that replaces only attention reads it.
    "reference/kv.py": ["ReferenceKVPool"],
}


def render() -> str:
    """Return the interface's text."""
    lines = [f"interface {'.'.join(map(str, INTERFACE))}", ""]
    for module, names in (_public_names() | DEVICE_NAMES).items():
        definitions = _definitions(FOLDER / module)
        for name in sorted(names):
            lines += [*_rendered(definitions[name]), ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Print the text, or write the lock file."""
    parser = argparse.ArgumentParser(prog="python -m pageport.backend.lock", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {LOCK_FILE.name} instead of printing")
    if parser.parse_args().write:
        LOCK_FILE.write_text(render())
    else:
        print(render(), end="")


def _public_names() -> dict[str, list[str]]:
    """Return what ``pageport.backend`` exports, by the file it comes from."""
    names: dict[str, list[str]] = {}
    for node in ast.parse((FOLDER / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = f"{node.module.removeprefix('pageport.backend.')}.py"
            names[module] = [alias.name for alias in node.names]
    return names


def _definitions(path: Path) -> dict[str, ast.stmt]:
    definitions: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text()).body:
        for name in _bound_names(node):
            definitions[name] = node
    return definitions


def _bound_names(node: ast.stmt) -> list[str]:
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
                if any(not name.startswith("_") for name in _bound_names(member)):
                    yield from (f"    {line}" for line in _rendered(member))
        case ast.FunctionDef():
            yield from (f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            yield f"def {node.name}({ast.unparse(node.args)}){returns}"
        case _:
            yield ast.unparse(node)


if __name__ == "__main__":
    main()
