"""``CompileCase``: one kernel as a launch would specialise it, so that it can be compiled where it cannot run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Triton specialises on addresses and integers that this divides; torch's allocations and our strides are such.
ALIGNMENT = 16


@dataclass(frozen=True, kw_only=True)
class CompileCase:
    """What ``triton.compile`` needs to know of one launch.

    ``signature`` names a type for each parameter of ``kernel``, in order: ``*bf16``, ``i32``, ``fp32``, ``constexpr``.
    An absent tensor is a ``constexpr`` whose value in ``constexprs`` is None.
    """

    kernel: Any  # a ``triton.jit`` function
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    options: Mapping[str, int]  # num_warps, num_stages, …
    label: str  # unique within the kernel
    # Parameters that are divisible by ``ALIGNMENT``.
    aligned: tuple[str, ...] = field(default=())
    # Does the kernel multiply matrices, so that matrix instructions are expected?
    has_matrix_product: bool = False

    @property
    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """Return ``aligned`` as ``ASTSource`` takes it: by place in the signature."""
        places = {name: place for place, name in enumerate(self.signature)}
        return {(places[name],): [["tt.divisibility", ALIGNMENT]] for name in self.aligned}


def signature_of(kernel: Any, types: Mapping[str, str]) -> dict[str, str]:
    """Return a signature in the kernel's order; parameters without a type are ``constexpr``."""
    return {name: types.get(name, "constexpr") for name in kernel.arg_names}
