"""What the compile check needs to know of a kernel's parameters, by their names."""

from collections.abc import Mapping
from typing import Any

from pageport_triton.compile_case import CompileCase

# The dtype that each pointer is to, by the parameter's name without ``_pointer``; None: there is no tensor.
Pointers = Mapping[str, str | None]


def named_case(
    kernel: Any,
    pointers: Pointers,
    constants: Mapping[str, Any],
    options: Mapping[str, int],
    label: str,
    *,
    floats: tuple[str, ...] = (),
    aligned: tuple[str, ...] = (),
    has_matrix_product: bool = False,
) -> CompileCase:
    """Return a case of a kernel whose pointers end in ``_pointer`` and whose constants are in capitals.

    Args:
        pointers: may name more than this kernel has.
        floats: parameters that are float32; the others are integers.
        aligned: endings of integers that 16 divides in nearly every launch; addresses and strides are such.
    """
    places = {name: name.removesuffix("_pointer") for name in kernel.arg_names if name.endswith("_pointer")}
    missing = {name: None for name, place in places.items() if pointers[place] is None}
    types = {}
    for name in kernel.arg_names:
        if name in missing or name.isupper():
            types[name] = "constexpr"
        elif name in places:
            types[name] = f"*{pointers[places[name]]}"
        else:
            types[name] = "fp32" if name in floats else "i32"
    is_aligned = (*places, *(name for name in types if name.endswith(("_stride", *aligned))))
    return CompileCase(
        kernel=kernel,
        signature=types,
        constexprs={**constants, **missing, **({"IS_INTERPRETED": False} if "IS_INTERPRETED" in types else {})},
        options=options,
        label=label,
        aligned=tuple(name for name in is_aligned if name not in missing),
        has_matrix_product=has_matrix_product,
    )
