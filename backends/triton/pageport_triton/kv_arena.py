"""``KVArena``: the device memory of all pools, which can be given back for a while."""

from typing import NamedTuple

from torch import Tensor


class _Lease(NamedTuple):
    memory: Tensor
    num_bytes: int


class KVArena:
    """Every pool's memory, kept by address of the tensor that owns it.

    Asleep, the tensors and their views stay but have no memory; what they held is lost, and after waking their
    addresses may be others.
    """

    def __init__(self) -> None:
        self._leases: dict[int, _Lease] = {}
        self.is_asleep = False

    @property
    def num_bytes(self) -> int:
        """Bytes of all pools, awake or not."""
        return sum(lease.num_bytes for lease in self._leases.values())

    def add(self, memory: Tensor) -> None:
        """Take charge of a pool's memory."""
        self._leases[id(memory)] = _Lease(memory, memory.untyped_storage().nbytes())

    def remove(self, memory: Tensor) -> None:
        """Forget a pool's memory; that of a pool that is not here is nobody's."""
        self._leases.pop(id(memory), None)

    def sleep(self) -> None:
        """Drop the memory of all pools."""
        for lease in self._leases.values():
            lease.memory.untyped_storage().resize_(0)
        self.is_asleep = True

    def wake(self) -> None:
        """Take as much memory as before, empty."""
        for lease in self._leases.values():
            lease.memory.untyped_storage().resize_(lease.num_bytes)
        self.is_asleep = False
