"""Level 1: what ``memory()`` says is true, pools take what they say they take, and give it back."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import torch

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec, Memory
from pageport.errors import OutOfMemory
from pageport.testing.conformance.cache import Cache, sample_spec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context

MIB = 2**20
# Pools are added until the figures show them: an allocator may have some memory in hand from before, an operating
# system keeps freed pages aside that it does not count as free, and other work on the machine moves some meanwhile.
POOL_SIZES = (64 * MIB, 64 * MIB, 128 * MIB, 256 * MIB, 256 * MIB)
LEAK_ROUNDS = 20
LEAK_POOL = 4 * MIB
# Numbers of blocks that no machine has: far more bytes than there are, and more than 64 bits can count.
ABSURD_BLOCKS = (2**40, 2**60)


def checks(context: Context) -> Iterator[Check]:
    """Yield the checks; pools are of the first cache kind and dtype the device declares."""
    for name, run in {
        "figures": check_figures,
        "bytes per block": check_bytes_per_block,
        "bytes per block/export fills them": check_export_size,
        "pool shows in the figures": check_pool_shows,
        "half of what is free": check_half,
        "out of memory": check_out_of_memory,
        "freed pools come back": check_leak,
        "close": check_close,
    }.items():
        yield Check(Level.MEMORY, f"memory/{name}", run)


def check_figures(context: Context) -> None:
    """Total, free and own memory are possible numbers, however often they are asked for."""
    for _ in range(3):
        memory = context.device.memory()
        assert isinstance(memory, Memory), f"memory() returned {memory!r} and not a Memory."
        for name in ("total", "free", "reserved_by_this_process"):
            value = getattr(memory, name)
            assert type(value) is int, f"memory().{name} is {value!r}; it is a whole number of bytes."
            assert value >= 0, f"memory().{name} is negative: {value}."
        assert memory.total > 0, "memory().total is 0."
        assert memory.free <= memory.total, (
            f"memory() says {memory.free} bytes of {memory.total} are free: more than all."
        )
        assert memory.reserved_by_this_process <= memory.total, (
            f"memory() says this process has {memory.reserved_by_this_process} bytes of {memory.total}: more than all."
        )


def check_bytes_per_block(context: Context) -> None:
    """A block takes at least its numbers' bytes, at most twice that, and so many per layer."""
    capabilities, device = context.capabilities, context.device
    for dtype, size in product(capabilities.kv_dtypes, {min(capabilities.block_sizes), max(capabilities.block_sizes)}):
        spec = sample_spec(capabilities, dtype=dtype, block_size=size)
        least = least_bytes(spec)
        taken = device.bytes_per_block(spec)
        assert type(taken) is int, f"bytes_per_block is {taken!r}, not a whole number of bytes."
        assert least <= taken <= 2 * least, (
            f"bytes_per_block is {taken} for {spec.num_layers} layers of {size} tokens of {spec.num_kv_heads} heads of "
            f"{spec.head_size} + {spec.value_head_size} numbers in {dtype}, which are {least} bytes: "
            "are all layers, keys and values counted?"
        )


def check_export_size(context: Context) -> None:
    """Exported blocks fill their rows, and nothing before or after is touched."""
    with Cache(context, sample_spec(context.capabilities), 5) as cache:
        cache.fill(context.torch_generator())
        size = context.device.bytes_per_block(cache.spec)
        seen = []
        # A byte that is left unwritten keeps both of these.
        for canary in (0xA5, 0x5A):
            buffer = torch.full((5, size), canary, dtype=torch.uint8)
            context.device.export_blocks(cache.pool, [4, 0, 2], buffer[1:4])
            context.device.synchronize()
            assert (buffer[[0, 4]] == canary).all(), (
                f"export_blocks wrote outside of its {size} bytes a block: is bytes_per_block too small?"
            )
            seen.append(buffer[1:4])
        unwritten = int((seen[0] != seen[1]).sum())
        assert unwritten == 0, (
            f"export_blocks leaves {unwritten} of {3 * size} bytes unwritten: bytes_per_block is wrong."
        )


def check_pool_shows(context: Context) -> None:
    """Pools that were written show in own memory, about as large as they say, and free memory is no constant.

    How far free memory falls says little: other processes give and take meanwhile.
    """
    device = context.device
    spec = sample_spec(context.capabilities)
    before = device.memory()
    own_moved = free_moved = False
    num_bytes = 0
    with ExitStack() as pools:
        for size in POOL_SIZES:
            num_blocks = max(1, min(size, before.free // 8) // device.bytes_per_block(spec))
            num_bytes += num_blocks * device.bytes_per_block(spec)
            touch(pools.enter_context(Cache(context, spec, num_blocks)))
            after = device.memory()
            own = after.reserved_by_this_process - before.reserved_by_this_process
            assert own <= 2 * num_bytes + 64 * MIB, (
                f"KV caches of {num_bytes} bytes by bytes_per_block took {own} bytes: does it count too little?"
            )
            own_moved |= own >= num_bytes / 2
            free_moved |= after.free != before.free
            if own_moved and free_moved:
                return
    for name, moved in {"reserved_by_this_process": own_moved, "free": free_moved}.items():
        assert moved, (
            f"memory().{name} hardly moved when KV caches of {num_bytes} bytes were allocated and written: "
            "is it measured, or a constant?"
        )


def check_half(context: Context) -> None:
    """Half of what is said to be free can be allocated."""
    device = context.device
    spec = sample_spec(context.capabilities)
    free = device.memory().free
    num_blocks = free // 2 // device.bytes_per_block(spec)
    try:
        pool = device.allocate_kv(spec, max(1, num_blocks))
    except OutOfMemory as error:
        raise AssertionError(
            f"memory() says {free} bytes are free, but a KV cache of half of that is refused: {error}"
        ) from error
    device.free_kv(pool)


def check_out_of_memory(context: Context) -> None:
    """A pool that cannot fit is ``OutOfMemory`` with the arithmetic, and the device goes on."""
    device = context.device
    spec = sample_spec(context.capabilities)
    just_too_many = device.memory().total // device.bytes_per_block(spec) + 1
    for num_blocks in (just_too_many, *ABSURD_BLOCKS):
        try:
            pool = device.allocate_kv(spec, num_blocks)
        except OutOfMemory as error:
            assert any(character.isdigit() for character in str(error)), (
                f"the error for a pool that does not fit carries no figures: {error}"
            )
            continue
        except Exception as error:
            raise AssertionError(
                f"a KV cache of {num_blocks} blocks raised {type(error).__name__} instead of OutOfMemory: {error}"
            ) from error
        device.free_kv(pool)
        raise AssertionError(
            f"a KV cache of {num_blocks} blocks of {device.bytes_per_block(spec)} bytes was allocated on a device of "
            f"{device.memory().total} bytes: raise OutOfMemory, or the first step that uses it is the one that fails."
        )
    with Cache(context, spec, 3) as cache:
        cache.fill(context.torch_generator())
        assert cache.export().shape[0] == 3


def check_leak(context: Context) -> None:
    """Pools that were written and freed leave nothing behind, twenty times over."""
    device = context.device
    spec = sample_spec(context.capabilities)
    num_blocks = max(1, LEAK_POOL // device.bytes_per_block(spec))
    num_bytes = num_blocks * device.bytes_per_block(spec)
    before = device.memory()
    for number in range(LEAK_ROUNDS + 2):
        if number == 2:  # an allocator may keep the first ones in hand
            before = device.memory()
        with Cache(context, spec, num_blocks) as cache:
            touch(cache)
    after = device.memory()
    left = after.reserved_by_this_process - before.reserved_by_this_process
    context.measured = f"{max(0, left) / MIB:.1f} MiB left of {LEAK_ROUNDS * num_bytes / MIB:.0f} MiB"
    assert left < LEAK_ROUNDS * num_bytes / 4, (
        f"after {LEAK_ROUNDS} pools of {num_bytes} bytes were allocated and freed, {left} bytes have not come back: "
        "does free_kv leak, or does something still hold the pool?"
    )


def check_close(context: Context) -> None:
    """Closing twice is harmless, and another open device is not touched by it."""
    device = context.open_device()
    pool = device.allocate_kv(sample_spec(context.capabilities), 2)
    device.free_kv(pool)
    for count in ("once", "twice"):
        _close(device, count)
    with Cache(context, sample_spec(context.capabilities), 2) as cache:
        cache.fill(context.torch_generator())


def least_bytes(spec: KVSpec) -> int:
    """Return the bytes of a block's numbers alone."""
    numbers = spec.num_layers * spec.block_size * spec.num_kv_heads * (spec.head_size + spec.value_head_size)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return numbers * dtype.itemsize


def touch(cache: Cache) -> None:
    """Write to every slot: where memory is backed on first use, it is backed now."""
    spec, device = cache.spec, cache.device.torch_device
    slots = range(cache.num_blocks * spec.block_size)
    for layer in range(spec.num_layers):
        for start in range(0, len(slots), 4096):
            part = slots[start : start + 4096]
            key = torch.ones(len(part), spec.num_kv_heads, spec.head_size, dtype=cache.compute_dtype, device=device)
            value = torch.ones(
                len(part), spec.num_kv_heads, spec.value_head_size, dtype=cache.compute_dtype, device=device
            )
            cache.write(layer, key, value, part)
    cache.device.synchronize()


def _close(device: Device, count: str) -> None:
    try:
        device.close()
    except Exception as error:
        raise AssertionError(
            f"close() called {count} raised {type(error).__name__}: {error}. Closing again is harmless."
        ) from error
