"""A check of ``fetch``: copies on the host, of what was there when they were started, in order."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context

NUM_FETCHES = 3
SIZES = (1, 0, 257)


def fetch_checks() -> Iterator[Check]:
    """Yield the check: every device has the method."""
    yield Check(Level.OPS, "ops/fetch", check_fetch)


def check_fetch(context: Context) -> None:
    """Start to fetch some sets of tensors while the device computes, then wait for each, the last one first."""
    device, generator = context.device, context.torch_generator()
    expected: list[list[Tensor]] = []
    waits = []
    for _ in range(NUM_FETCHES):
        drawn = [torch.randint(2**40, (size,), generator=generator) for size in SIZES]
        numbers = torch.randn(3, 5, generator=generator)
        expected.append([*(2 * ids for ids in drawn), numbers.square()])
        computed = [*(2 * ids.to(device.torch_device) for ids in drawn), numbers.to(device.torch_device).square()]
        waits.append(device.fetch(computed))
    for number in reversed(range(NUM_FETCHES)):
        copies = waits[number]()
        assert len(copies) == len(expected[number]), (
            f"fetch of {len(expected[number])} tensors gives {len(copies)} copies."
        )
        for place, (copy, original) in enumerate(zip(copies, expected[number], strict=True)):
            what = f"tensor {place} of fetch {number}"
            assert copy.is_cpu, f"{what} is on {copy.device} and not on the host."
            assert copy.dtype == original.dtype, f"{what} is {copy.dtype}; it was {original.dtype}."
            assert copy.shape == original.shape, f"{what} is {tuple(copy.shape)}; it was {tuple(original.shape)}."
            assert torch.equal(copy, original), (
                f"{what} is not what the tensor held: are the copies waited for, and are they copies of their own?"
            )
