"""Times of functions on a device, and what the device can do at best."""

import time
from collections.abc import Callable

import torch
from part import Part


def seconds(part: Part, function: Callable[[], object], *, least_s: float = 0.15, most_calls: int = 200) -> float:
    """Return the time of a call: the best of five runs of as many calls as take a fifth of ``least_s``."""
    function()
    once = _timed(part, function, 1)
    if part.is_dry:
        return once
    calls = max(1, min(most_calls, int(least_s / 5 / max(once, 1e-6))))
    return min(_timed(part, function, calls) for _ in range(5))


def copy_bandwidth(part: Part) -> float:
    """Return bytes a second, read and written together, of a copy that no cache holds."""
    source = torch.empty(1 << (24 if part.is_dry else 32), dtype=torch.uint8, device=part.torch_device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(part, lambda: target.copy_(source))


def matrix_rate(part: Part, dtype: torch.dtype) -> float:
    """Return floating-point operations a second of a large square product."""
    size = 256 if part.is_dry else 8192
    left, right = (torch.randn(size, size, device=part.torch_device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds(part, lambda: left @ right)


def _timed(part: Part, function: Callable[[], object], calls: int) -> float:
    part.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    part.synchronize()
    return (time.perf_counter() - start) / calls
