"""Compile every launch of the `xpu` tables to SPIR-V, for an Intel GPU that is not here.

Triton's own wheel has no compiler for these; the package triton-xpu has one, under the same name, so it needs an
environment of its own, with a torch of any kind:

    python -m venv spirv && spirv/bin/pip install torch setuptools
    spirv/bin/pip install --no-deps triton-xpu==3.3.0b1 .
    spirv/bin/python -m pageport_triton.spirv_check

Prints the size of each module and exits with 1 where one does not compile.
"""

import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from pageport_triton.compile_case import CompileCase
from pageport_triton.compiled_case import KERNEL_MODULES, case_name, cases_of

WARP_SIZE = 32
# What the driver would say of a Data Center GPU Max; the compiler reads which instructions there are.
PROPERTIES: Any = {
    "name": "Data Center GPU Max",
    "max_work_group_size": 1024,
    "max_num_sub_groups": 64,
    "sub_group_sizes": [16, 32],
    "has_subgroup_matrix_multiply_accumulate": True,
    "has_subgroup_matrix_multiply_accumulate_tensor_float32": True,
    "has_subgroup_2d_block_io": True,
    "has_bfloat16_conversions": True,
    "has_fp64": True,
    "has_atomic64": True,
    "architecture": 0,
    "version": "",
    "device_arch": "pvc",
}


def compile_case(case: CompileCase) -> bytes:
    """Return the SPIR-V of a case."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=case.kernel,
        signature=dict(case.signature),
        constexprs=dict(case.constexprs),
        attrs=case.attributes,
    )
    target = GPUTarget("xpu", PROPERTIES, WARP_SIZE)
    spirv: bytes = triton.compile(source, target=target, options=dict(case.options)).asm["spv"]
    return spirv


def main() -> int:
    if find_spec("triton") is None or find_spec("triton.backends.intel") is None:
        print("This environment has no Triton for Intel GPUs. Install triton-xpu in one of its own.", file=sys.stderr)
        return 1
    _do_without_a_driver()
    failed = 0
    for module in KERNEL_MODULES:
        for case in cases_of(module, "xpu"):
            try:
                print(f"{case_name(module, case)}: {len(compile_case(case))} bytes", flush=True)
            except Exception as error:
                # One that fails must not hide the others.
                print(f"{case_name(module, case)} does not compile: {error}", file=sys.stderr)
                failed += 1
    print(f"{failed} launches do not compile." if failed else "All launches compile.")
    return 1 if failed else 0


def _do_without_a_driver() -> None:
    """Spare the compiler the C++ module that asks the driver which GPU there is; it wants SYCL's headers."""
    from triton.backends import backends

    parser = SimpleNamespace(parse_device_arch=lambda architecture: "")
    compiler = backends["intel"].compiler
    compiler.__init__.__globals__["compile_module_from_src"] = lambda source, name: parser


if __name__ == "__main__":
    sys.exit(main())
