"""``CompiledCase``: what one kernel, as one launch specialises it, takes on one architecture; and what may be wrong."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pageport_triton.compile_case import CompileCase
from pageport_triton.resource_usage import ResourceUsage
from pageport_triton.targets import TARGETS

KERNEL_MODULES = (
    "decode_attention",
    "prefill_attention",
    "write_kv",
    "copy_blocks",
    "norms",
    "rope",
    "activations",
    "gather_rows",
    "sample",
    "quantised_linear",
)


@dataclass(frozen=True, kw_only=True)
class CompiledCase:
    """A case by name, with the hash of what was compiled and the compiler's version."""

    architecture: str
    name: str  # module, kernel and label
    hash: str
    triton: str
    has_matrix_product: bool
    usage: ResourceUsage

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "CompiledCase":
        """Return what ``dataclasses.asdict`` made a dictionary of."""
        return cls(**{**fields, "usage": ResourceUsage(**fields["usage"])})

    def faults(self) -> Iterator[str]:
        """Say what a configuration that may be chosen must not be."""
        target = TARGETS[self.architecture]
        if self.usage.spill_bytes:
            yield f"spills {self.usage.spill_bytes} bytes a thread"
        if self.usage.shared_bytes > target.shared_bytes:
            yield f"takes {self.usage.shared_bytes} bytes of shared memory, of {target.shared_bytes}"
        if self.has_matrix_product and not self.usage.matrix_instructions:
            yield "multiplies matrices without matrix instructions"


def cases_of(module: str, architecture: str) -> list[CompileCase]:
    """Return every launch that a kernel module may choose on an architecture."""
    return list(importlib.import_module(f"pageport_triton.{module}").compile_cases(architecture))


def case_name(module: str, case: CompileCase) -> str:
    """Return a name that is unique on an architecture."""
    return f"{module}/{case.kernel.fn.__name__.lstrip('_')} {case.label}"
