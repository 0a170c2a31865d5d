"""``Library``: the compiled kernels, called with structs of pointers; and ``Tape``, a recorded run of them."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pageport_cpu.compiler import Kernels
from pageport_cpu.kernel_store import BUILT, LibraryUnavailable, provide_library

Pointer, Integer, Real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double

# Codes of `Dtype` in kernels/kernel.h.
DTYPE_CODES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
    torch.int8: 5,
}


class Arguments(ctypes.Structure):
    """The struct one kernel takes: a mirror of the one in ``kernels/<kernel>.cpp``, field by field."""

    kernel: ClassVar[str]
    # The fields that say how many rows there are, of tensors with one for each token (or each that is wanted) and with
    # one for each request: a tape that is resized changes them.
    token_counts: ClassVar[tuple[str, ...]] = ("rows",)
    request_counts: ClassVar[tuple[str, ...]] = ()


class SetNumThreads(Arguments):
    kernel = "set_num_threads"
    _fields_ = (("count", Integer),)


class RunTape(Arguments):
    kernel = "run_tape"
    _fields_ = (("entries", Pointer), ("count", Integer))


class TapeEntry(ctypes.Structure):
    _fields_ = (("kernel", Pointer), ("arguments", Pointer))


class Library:
    """Kernels for one instruction set. Tensors named in arguments must outlive the call, and any tape of it."""

    def __init__(self, path: Path, instruction_set: str) -> None:
        self.instruction_set = instruction_set
        self._path = path
        self._library = ctypes.CDLL(str(path))
        self._functions: dict[type[Arguments], Any] = {}
        self._tape: list[tuple[Any, Arguments]] | None = None

    def run(self, arguments: Arguments) -> None:
        """Run one kernel, and note it down while a tape is recorded."""
        function = self._functions.get(type(arguments)) or self._bind(type(arguments))
        function(ctypes.byref(arguments))
        if self._tape is not None:
            self._tape.append((function, arguments))

    def set_num_threads(self, count: int) -> None:
        """Let kernels use ``count`` threads, the caller's included; waits for a kernel that runs."""
        self.run(SetNumThreads(count))

    @contextmanager
    def record(self) -> Iterator["Tape"]:
        """Note down every kernel that runs inside; the tape is complete afterwards."""
        assert self._tape is None, "a tape is being recorded already"
        self._tape = []
        tape = Tape(self)
        try:
            yield tape
            tape.fill(self._tape)
        finally:
            self._tape = None

    def _bind(self, kind: type[Arguments]) -> Any:
        function = getattr(self._library, f"pageport_{kind.kernel}")
        function.argtypes, function.restype = [Pointer], None
        size = ctypes.c_int64.in_dll(self._library, f"pageport_{kind.kernel}_size").value
        assert size == ctypes.sizeof(kind), (
            f"{kind.__name__} has {ctypes.sizeof(kind)} bytes, {kind.kernel} in {self._path} takes {size}"
        )
        self._functions[kind] = function
        return function


class Tape:
    """Kernels with their arguments, run by one native call: the host costs nothing in between."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._calls: list[tuple[Any, Arguments]] = []
        self._run = RunTape(None, 0)

    def fill(self, calls: list[tuple[Any, Arguments]]) -> None:
        self._calls = calls
        self._entries = (TapeEntry * len(calls))(
            *(
                TapeEntry(ctypes.cast(function, Pointer).value, ctypes.addressof(arguments))
                for function, arguments in calls
            )
        )
        self._run = RunTape(ctypes.addressof(self._entries), len(calls))
        self._run.kept = (calls, self._entries)  # a tape that records this one keeps only the arguments

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def arguments(self) -> list[Arguments]:
        """Those of every call, in order; what is changed in them counts from the next replay on."""
        return [arguments for _, arguments in self._calls]

    def replay(self) -> None:
        """Run all of it again: on the same buffers, whatever they hold now."""
        self._library.run(self._run)


def pointer(tensor: Tensor | None) -> int | None:
    """Return where a tensor's first element lies; a missing one is a null pointer."""
    return None if tensor is None else tensor.data_ptr()


def load_library(
    kernels: Kernels = Kernels(),  # noqa: B008 - frozen
    built: Path = BUILT,
    instruction_set: str | None = None,
) -> Library:
    """Load the best library this machine can run; compile it if it is missing or older than its sources.

    Args:
        instruction_set: take this one, which this machine has.

    Raises:
        LibraryUnavailable: nothing is built and nothing can be, or what is built cannot be loaded.
    """
    path, target = provide_library(kernels, built, instruction_set)
    try:
        return Library(path, target.name)
    except OSError as error:
        raise LibraryUnavailable(f"{path} cannot be loaded: {error}. Delete it to have it compiled again.") from error
