"""``launch``: start a kernel; Triton's types know neither its constants nor the compiler's options."""

from typing import Any


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start one program of ``kernel`` for each place of ``grid``, on the current stream."""
    kernel[grid](*arguments, **constants)
