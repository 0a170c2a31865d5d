"""A process that compiles cases and prints what each takes, one JSON line a case.

It reads a JSON list of (architecture, kernel module, name of the case) from its input, and runs without
``TRITON_INTERPRET``: the choice between interpreting and compiling is made once a process.
"""

import dataclasses
import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pageport_triton.compile_case import CompileCase
from pageport_triton.compiled_case import CompiledCase, case_name, cases_of
from pageport_triton.kernel_hash import kernel_hash
from pageport_triton.resource_usage import resource_usage
from pageport_triton.targets import TARGETS, Target


def compile_case(case: CompileCase, target: Target) -> Any:
    """Return what ``triton.compile`` makes of a case; it needs neither device nor driver."""
    source = ASTSource(
        fn=case.kernel,
        signature=dict(case.signature),
        constexprs=dict(case.constexprs),
        attrs=case.attributes,
    )
    return triton.compile(
        source, target=GPUTarget(target.toolchain, target.chip, target.warp_size), options=dict(case.options)
    )


def compile_named(architecture: str, module: str, name: str) -> CompiledCase:
    """Compile the case of a kernel module that is called ``name``."""
    target = TARGETS[architecture]
    case = next(case for case in cases_of(module, architecture) if case_name(module, case) == name)
    return CompiledCase(
        architecture=architecture,
        name=name,
        hash=kernel_hash(case),
        triton=triton.__version__,
        has_matrix_product=case.has_matrix_product,
        usage=resource_usage(compile_case(case, target), target),
    )


def main() -> None:
    for architecture, module, name in json.load(sys.stdin):
        print(json.dumps(dataclasses.asdict(compile_named(architecture, module, name))), flush=True)


if __name__ == "__main__":
    main()
