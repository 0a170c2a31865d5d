"""``StepWatch``: refuses, while a step runs, whatever a graph compiled ahead of time could not do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pageport.backend.program import Bucket
from pageport.errors import BackendError
from pageport.testing.static_ops import ALLOWED_OPS, HOST_READS


class Call(NamedTuple):
    """One op of a graph: its name, its tensors' shapes, and the numbers that a compiler would make constants of."""

    op: str
    tensors: tuple[tuple[torch.Size, torch.dtype], ...]
    constants: tuple[object, ...]


class StepWatch:
    """Watches the steps of one kind, which must all be the same ops on the same shapes.

    An op outside ``ALLOWED_OPS``, a shape that depends on data and a read by the host raise a ``BackendError``, and so
    does any op that differs from the first step's: a branch of Python's that looks at the batch.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._graph: tuple[Call, ...] | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch what runs inside."""
        calls: list[Call] = []
        # Costs more than all else; later steps run the same code, or differ from the first.
        reads = _NoHostReads(self._bucket) if self._graph is None else nullcontext()
        # Always in inference mode, where ops of several parts come whole.
        with torch.inference_mode(), reads, _StaticOps(self._bucket, calls):
            yield
        if self._graph is None:
            self._graph = tuple(calls)
        self._require_same(self._graph, calls)

    def _require_same(self, first: Sequence[Call], calls: Sequence[Call]) -> None:
        for place, (expected, found) in enumerate(zip(first, calls, strict=False)):
            if expected != found:
                raise BackendError(
                    f"In a step of {self._bucket} op {place} is {_told(found)}; in the first step it was "
                    f"{_told(expected)}. Python looked at the batch; a compiled graph would not."
                )
        if len(first) != len(calls):
            raise BackendError(
                f"A step of {self._bucket} consists of {len(calls)} ops; the first one had {len(first)}. "
                "Python looked at the batch; a compiled graph would not."
            )


class _StaticOps(TorchDispatchMode):  # type: ignore[no-untyped-call] # as torch has it
    def __init__(self, bucket: Bucket, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as torch has it
        self._bucket = bucket
        self._calls = calls

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, which takes seconds, and asks it about every op.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], arguments: Sequence[Any] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        name = function.overloadpacket.__name__
        if torch.Tag.data_dependent_output in function.tags:
            raise BackendError(f"aten.{name} in a step of {self._bucket} waits for the device and reads from it.")
        if _has_dynamic_shape(function, name, arguments):
            raise BackendError(f"aten.{name} in a step of {self._bucket} has a result whose shape depends on data.")
        if name not in ALLOWED_OPS:
            raise BackendError(
                f"aten.{name} in a step of {self._bucket} is not among the ops that may be compiled "
                "(pageport.testing.static_ops)."
            )
        self._calls.append(_call(name, (*arguments, *(named[key] for key in sorted(named)))))
        return function(*arguments, **named)


class _NoHostReads(TorchFunctionMode):
    """Sees methods of tensors that torch's dispatcher does not."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self._bucket = bucket

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in HOST_READS:
            raise BackendError(f"{name}() in a step of {self._bucket} waits for the device and reads from it.")
        return function(*arguments, **(named or {}))


def _has_dynamic_shape(function: Any, name: str, arguments: Sequence[Any]) -> bool:
    if torch.Tag.dynamic_output_shape in function.tags or (name == "where" and len(arguments) == 1):
        return True
    # A mask is an index of as many rows as it has ones.
    return name == "index_put_" and any(index is not None and index.dtype == torch.bool for index in arguments[1])


def _call(name: str, arguments: Sequence[Any]) -> Call:
    tensors: list[tuple[torch.Size, torch.dtype]] = []
    constants: list[object] = []
    for argument in arguments:
        parts = argument if isinstance(argument, (list, tuple)) else (argument,)
        for part in parts:
            if isinstance(part, Tensor):
                tensors.append((part.shape, part.dtype))
            else:
                constants.append(part)
    return Call(name, tuple(tensors), tuple(constants))


def _told(call: Call) -> str:
    shapes = ", ".join(str(list(shape)) for shape, _ in call.tensors)
    return f"aten.{call.op} of {shapes or 'no tensor'} with {list(call.constants)}"
