"""``kernel_hash``: what a kernel's machine code depends on, but for the compiler and the target."""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType
from typing import Any

from pageport_triton.compile_case import CompileCase

_HASH_LETTERS = 16


def kernel_hash(case: CompileCase) -> str:
    """Hash the sources of a kernel and of what it calls, and how it is specialised; comments do not count.

    The same in a process that interprets kernels and in one that compiles them.
    """
    parts = [
        *(f"{name}\n{source}" for name, source in sorted(_sources(case.kernel, {}).items())),
        repr(list(case.signature.items())),
        repr(sorted(case.constexprs.items())),
        repr(sorted(case.options.items())),
        repr(sorted(case.aligned)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH_LETTERS]


def _sources(kernel: Any, found: dict[str, str]) -> dict[str, str]:
    """Collect a function's source, the functions it calls, and the constants it reads."""
    function = kernel.fn
    if function.__qualname__ in found:
        return found
    found[function.__qualname__] = code(function)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if hasattr(value, "fn") and value.fn.__module__.startswith("pageport_triton"):
            _sources(value, found)
        elif hasattr(value, "value"):  # a `tl.constexpr`
            found[name] = repr(value.value)
    return found


@cache
def code(function: Callable[..., Any]) -> str:
    """Return a function's source without comments, docstring and formatting."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
