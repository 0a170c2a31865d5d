"""Checks of the KV cache's content: writing, exporting, importing, copying, and what is refused."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pageport.backend.kv import KVSpec
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.cache import Cache, middle, sample_spec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.declared import KV_DTYPES, KV_KINDS
from pageport.testing.conformance.kv_rounding import EIGHT_BITS, FLOAT8, steps
from pageport.testing.conformance.oracle import Floats, as_floats

NUM_BLOCKS = 7


def kv_checks(context: Context) -> Iterator[Check]:
    """Yield the checks for what the device declares, and for some of what it does not."""
    capabilities = context.capabilities
    for dtype in capabilities.kv_dtypes:
        yield _check(f"write/values come back, {dtype}", partial(check_read_back, changes={"dtype": dtype}))
        yield _check(f"write/zeros and NaN, {dtype}", partial(check_special_numbers, dtype=dtype))
    for dtype in (dtype for dtype in capabilities.kv_dtypes if dtype in EIGHT_BITS):
        yield _check(f"write/large and small numbers, {dtype}", partial(check_magnitudes, dtype=dtype))
        if dtype in FLOAT8:
            yield _check(f"write/saturation, {dtype}", partial(check_saturation, dtype=dtype))
        # The others keep one number after the other; these may keep scales, too.
        yield _check(f"write/padding is skipped, {dtype}", partial(check_padding, dtype=dtype))
        yield _check(f"export and import, {dtype}", partial(check_round_trip, dtype=dtype))
        yield _check(f"copy/every layer, {dtype}", partial(check_copy_layers, dtype=dtype))
    for kind in capabilities.kv_kinds[1:]:
        yield _check(f"write/values come back, {kind}", partial(check_read_back, changes={"kind": kind}))
    for size in sorted({min(capabilities.block_sizes), max(capabilities.block_sizes)}):
        if size != middle(capabilities.block_sizes):
            yield _check(
                f"write/values come back, block {size}", partial(check_read_back, changes={"block_size": size})
            )
    if len(capabilities.head_sizes) != 1:
        yield _check("write/values narrower than keys", check_narrow_values)
    yield _check("write/padding is skipped", check_padding)
    yield _check("write/views into a fused projection", check_strided)
    yield _check("pools are separate", check_separate_pools)
    yield _check("export and import", check_round_trip)
    yield _check("export and import of nothing", check_nothing)
    yield _check("copy/every layer", check_copy_layers)
    yield _check("copy/chains in order", check_copy_chain)
    yield _check("copy/any pairs in order", check_copy_any)
    for name, changes, value in undeclared(context):
        yield _check(f"refused/{name}", partial(check_refused, what=name, changes=changes, value=value))


def check_read_back(context: Context, changes: dict[str, str | int]) -> None:
    """What is written at shuffled slots of permuted blocks is found by attention, in every layer."""
    generator = context.torch_generator()
    with Cache(context, sample_spec(context.capabilities, **changes), NUM_BLOCKS) as cache:
        size = cache.spec.block_size
        blocks = torch.randperm(NUM_BLOCKS, generator=generator)[:4].tolist()
        count = min(3 * size + (size + 1) // 2, cache.max_tokens)
        tokens = [cache.random_tokens(count, generator) for _ in range(cache.spec.num_layers)]
        shuffled = torch.randperm(count, generator=generator)
        slots = [blocks[position // size] * size + position % size for position in shuffled.tolist()]
        for layer, (key, value) in enumerate(tokens):
            cache.write(layer, key[shuffled.to(key.device)], value[shuffled.to(key.device)], slots)
        for layer, (key, value) in enumerate(tokens):
            _check_found(cache, layer, cache.look_up(layer, key, blocks), value, blocks)


def check_special_numbers(context: Context, dtype: str) -> None:
    """A token of zeros is one of zeros, and NaN is never lost; neither touches the heads beside it."""
    with Cache(context, sample_spec(context.capabilities, dtype=dtype), NUM_BLOCKS) as cache:
        key, value = cache.random_tokens(1, context.torch_generator())
        for number in (0.0, torch.nan):
            special_key, special_value = key.clone(), value.clone()
            special_key[0, 0] = special_value[0, 0] = number
            for layer, written in enumerate(((key, special_value), (special_key, value))):
                cache.write(layer, *written, [0])
                found = cache.look_up(layer, key, [0])
                _check_found(cache, layer, found[:, 1:], value[:, 1:], [0])
                expected = torch.full_like(value[0, 0], torch.nan) if number else written[1][0, 0]
                is_kept = torch.isclose(found[0, 0], expected, rtol=0.2, atol=0.05, equal_nan=True).all()
                name, what = "NaN" if number else "zeros", "keys" if layer else "values"
                assert is_kept, (
                    f"one token whose {what} of head 0 are {name}: attention gives {found[0, 0, :3].tolist()} ... "
                    f"instead of {expected[:3].tolist()} ... Is a scale zero, or does rounding lose NaN?"
                )


def check_magnitudes(context: Context, dtype: str) -> None:
    """Each token and head is rounded by its own numbers, be they large or small."""
    generator = context.torch_generator()
    with Cache(context, sample_spec(context.capabilities, dtype=dtype), NUM_BLOCKS) as cache:
        count = min(cache.max_tokens, NUM_BLOCKS * cache.spec.block_size)
        key, value = cache.random_tokens(count, generator)
        exponents = torch.randint(-6, 8, (count, cache.spec.num_kv_heads, 1), generator=generator)
        value = value * (2.0**exponents).to(value)
        blocks = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
        size = cache.spec.block_size
        cache.write(1, key, value, [blocks[token // size] * size + token % size for token in range(count)])
        _check_found(cache, 1, cache.look_up(1, key, blocks), value, blocks)


def check_saturation(context: Context, dtype: str) -> None:
    """Numbers beyond the largest become the largest, of keys and values, and not infinity, NaN or anything small."""
    largest = FLOAT8[dtype].largest
    with Cache(context, sample_spec(context.capabilities, dtype=dtype), NUM_BLOCKS) as cache:
        for factor in (1.0, 1.05, 1.13):
            # One token, so that all weight is on it whatever its score is.
            key, value = cache.random_tokens(1, context.torch_generator())
            cache.write(0, key.sign() * factor * largest, value.sign() * factor * largest, [0])
            found = cache.look_up(0, key, [0])
            # The numbers next to the largest are 7 % and 14 % below it.
            wrong = ~((found / largest - value.sign()).abs() <= 0.01)
            assert not wrong.any(), (
                f"{factor * largest:g}, written to a cache in {dtype}, comes back as {float(found[wrong][0].abs()):g} "
                f"instead of {largest:g}, the largest number it has: saturate."
            )


def check_narrow_values(context: Context) -> None:
    """Keys and values may have heads of different sizes."""
    sizes = sorted(context.capabilities.head_sizes) or [32, 64]
    changes: dict[str, str | int] = {"head_size": sizes[1], "value_head_size": sizes[0]}
    check_read_back(context, changes)


def check_padding(context: Context, dtype: str | None = None) -> None:
    """Tokens with slot -1, here full of NaN, change no block; the others are written."""
    generator = context.torch_generator()
    spec = _spec(context, dtype)
    with Cache(context, spec, NUM_BLOCKS) as padded, Cache(context, spec, NUM_BLOCKS) as plain:
        _fill_alike(context, padded, plain)
        real = [5, spec.block_size * 3 + 1, 0]
        key, value = padded.random_tokens(6, generator)
        key[0::2] = value[0::2] = torch.nan
        for layer in range(spec.num_layers):
            padded.write(layer, key, value, [-1, real[0], -1, real[1], -1, real[2]])
            plain.write(layer, key[1::2], value[1::2], real)
        changed = _first_difference(padded.export(), plain.export())
        assert changed is None, (
            f"padding (slot -1) in a step changed block {changed} of blocks 0 to {NUM_BLOCKS - 1}: "
            "is -1 taken for an index from the end, or for slot 0?"
        )
        padded.write(0, torch.full_like(key, torch.nan), torch.full_like(value, torch.nan), [-1] * 6)
        changed = _first_difference(padded.export(), plain.export())
        assert changed is None, f"a step of nothing but padding (slot -1) changed block {changed}."


def check_strided(context: Context) -> None:
    """Keys and values are views into the rows of a fused projection, as the decoder hands them over."""
    generator = context.torch_generator()
    spec = sample_spec(context.capabilities)
    with Cache(context, spec, NUM_BLOCKS) as strided, Cache(context, spec, NUM_BLOCKS) as plain:
        _fill_alike(context, strided, plain)
        count = spec.block_size + 1
        key, value = strided.random_tokens(count, generator)
        query = torch.randn(count, 3 * key[0].numel(), generator=generator).to(key)
        fused = torch.cat([query, key.flatten(1), value.flatten(1)], dim=1)
        key_columns = fused[:, query.shape[1] : -value[0].numel()]
        value_columns = fused[:, -value[0].numel() :]
        slots = torch.randperm(NUM_BLOCKS * spec.block_size, generator=generator)[:count].tolist()
        plain.write(1, key, value, slots)
        strided.write(1, key_columns.view(key.shape), value_columns.view(value.shape), slots)
        changed = _first_difference(strided.export(), plain.export())
        assert changed is None, (
            f"block {changed} differs when keys and values are views with a row stride of {fused.stride(0)} "
            f"elements rather than {key.stride(0)}: are the strides of the tensors ignored?"
        )


def check_separate_pools(context: Context) -> None:
    """Two cache groups share nothing."""
    spec = sample_spec(context.capabilities)
    with Cache(context, spec, NUM_BLOCKS) as first, Cache(context, spec, NUM_BLOCKS) as second:
        first.fill(context.torch_generator())
        before = first.export()
        second.fill(context.torch_generator().manual_seed(1))
        changed = _first_difference(first.export(), before)
        assert changed is None, f"writing to one pool changed block {changed} of another: do pools share storage?"


def check_round_trip(context: Context, dtype: str | None = None) -> None:
    """Blocks come back bit by bit in other places, in all layers, and the rest stays as it was."""
    generator = context.torch_generator()
    with Cache(context, _spec(context, dtype), NUM_BLOCKS) as cache:
        _check_every_layer_is_exported(cache, generator)
        cache.fill(generator)
        before = cache.export()
        order = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
        # Never ascending, so that a device that sorts is found out.
        sources, targets = sorted(order[:3], reverse=True), sorted(order[3:6], reverse=True)
        saved = cache.export(sources)
        assert torch.equal(saved, before[sources]), (
            f"export_blocks of {sources} gives other bytes than the same blocks among all: is the order of ids kept?"
        )
        cache.device.import_blocks(cache.pool, targets, saved)
        expected = before.clone()
        expected[targets] = saved
        changed = _first_difference(cache.export(), expected)
        assert changed is None, (
            f"blocks {sources} were exported and imported into {targets}; afterwards block {changed} "
            + ("does not hold the bytes imported into it." if changed in targets else "has changed, too.")
        )
        key, value = cache.random_tokens(cache.spec.block_size, generator)
        layer = cache.spec.num_layers - 1
        cache.write(layer, key, value, range(sources[0] * len(key), (sources[0] + 1) * len(key)))
        cache.device.import_blocks(cache.pool, targets[:1], cache.export(sources[:1]))
        shown = slice(cache.max_tokens)
        _check_found(cache, layer, cache.look_up(layer, key[shown], targets[:1]), value[shown], targets[:1])


def check_nothing(context: Context) -> None:
    """Empty lists of blocks and of pairs do nothing."""
    with Cache(context, sample_spec(context.capabilities), NUM_BLOCKS) as cache:
        cache.fill(context.torch_generator())
        before = cache.export()
        cache.device.import_blocks(cache.pool, [], cache.export([]))
        cache.device.copy_blocks(cache.pool, [])
        assert torch.equal(cache.export(), before), "copying or importing an empty list of blocks changed the cache."


def check_copy_layers(context: Context, dtype: str | None = None) -> None:
    """A copy takes every layer along and leaves other blocks alone."""
    generator = context.torch_generator()
    with Cache(context, _spec(context, dtype), NUM_BLOCKS) as cache:
        size, layers = cache.spec.block_size, cache.spec.num_layers
        missing = []
        for layer in range(layers):
            cache.fill(generator)
            # Source and target now differ in this layer only.
            cache.device.import_blocks(cache.pool, [5], cache.export([2]))
            cache.write(layer, *cache.random_tokens(size, generator), range(2 * size, 3 * size))
            before = cache.export()
            assert not torch.equal(before[2], before[5]), f"writing layer {layer} does not show in export_blocks."
            cache.device.copy_blocks(cache.pool, [(2, 5)])
            before[5] = before[2]
            after = cache.export()
            if not torch.equal(after[5], before[5]):
                missing.append(layer)
                continue
            changed = _first_difference(after, before)
            assert changed is None, f"copying block 2 to 5 changed block {changed}, too."
        assert not missing, (
            f"copying block 2 to 5 left out layer {', '.join(map(str, missing))} of {layers}: "
            "a copy takes all layers of the pool along, keys and values, and their scales if it keeps any."
        )


def check_copy_chain(context: Context) -> None:
    """Pairs are applied one after the other: a target may be a later source, and a source a later target."""
    chains = {
        ((0, 1), (1, 2)): "the second copy must see what the first one wrote",
        ((1, 2), (0, 1)): "the first copy must read before the second one writes",
        ((3, 3),): "a block copied to itself stays as it is",
        ((0, 1), (0, 2), (0, 4)): "one source may have several targets",
        ((0, 1), (2, 1)): "the last of several copies to one target wins",
        ((0, 1), (1, 0)): "after the first copy both blocks hold the same",
    }
    for pairs, why in chains.items():
        _check_copies(context, list(pairs), why)


def check_copy_any(context: Context) -> None:
    """Any list of pairs gives what copying one after the other gives."""
    generator = context.torch_generator()
    for _ in range(4):
        pairs = torch.randint(0, NUM_BLOCKS, (9, 2), generator=generator).tolist()
        _check_copies(context, [(source, target) for source, target in pairs], "pairs are applied in the given order")


def check_refused(context: Context, what: str, changes: dict[str, str | int], value: str) -> None:
    """A cache the capabilities do not cover is refused with an error that names what is not covered."""
    spec = sample_spec(context.capabilities, **changes)
    try:
        pool = context.device.allocate_kv(spec, 2)
    except UnsupportedFeature as error:
        assert value in str(error), f"the error for a cache with {what} does not name {value}: {error}"
        return
    except Exception as error:
        raise AssertionError(
            f"a cache with {what} is not declared; allocate_kv raised {type(error).__name__}: {error} "
            "instead of UnsupportedFeature: call pageport.backend.coverage.check_kv first."
        ) from error
    context.device.free_kv(pool)
    raise AssertionError(
        f"allocate_kv accepts a cache with {what}, which the capabilities do not declare: "
        "declare it, or raise UnsupportedFeature."
    )


def undeclared(context: Context) -> Iterator[tuple[str, dict[str, str | int], str]]:
    """Yield a name, changes to a spec, and the word the error must contain, for some that is not declared."""
    capabilities = context.capabilities
    for dtype in KV_DTYPES:
        if dtype not in capabilities.kv_dtypes:
            yield f"dtype {dtype}", {"dtype": dtype}, dtype
    for kind in KV_KINDS:
        if kind not in capabilities.kv_kinds:
            yield f"kind {kind}", {"kind": kind}, kind
    size = next(size for size in (24, 12, 48) if size not in capabilities.block_sizes)
    yield f"block size {size}", {"block_size": size}, str(size)
    if capabilities.head_sizes:
        head_size = next(size for size in range(8, 4096, 8) if size not in capabilities.head_sizes)
        yield f"head size {head_size}", {"head_size": head_size}, str(head_size)
        yield f"value head size {head_size}", {"value_head_size": head_size}, str(head_size)


def _check(name: str, run: Callable[[Context], None]) -> Check:
    return Check(Level.KV_AND_WEIGHTS, f"kv/{name}", run)


def _fill_alike(context: Context, *caches: Cache) -> None:
    """Give every slot a content, the same in each cache: blocks can then be compared bit by bit."""
    for cache in caches:
        cache.fill(context.torch_generator())


def _check_copies(context: Context, pairs: list[tuple[int, int]], why: str) -> None:
    with Cache(context, _small(sample_spec(context.capabilities)), NUM_BLOCKS) as cache:
        cache.fill(context.torch_generator())
        before = cache.export()
        holds = list(range(NUM_BLOCKS))
        for source, target in pairs:
            holds[target] = holds[source]
        cache.device.copy_blocks(cache.pool, pairs)
        after = cache.export()
        wrong = _first_difference(after, before[holds])
        if wrong is None:
            return
        found = [block for block in range(NUM_BLOCKS) if torch.equal(after[wrong], before[block])]
        seen = f"holds the first content of block {found[0]}" if found else "holds no block's first content"
        raise AssertionError(
            f"after copy_blocks({pairs}) block {wrong} {seen} instead of that of block {holds[wrong]}: {why}."
        )


def _spec(context: Context, dtype: str | None) -> KVSpec:
    """Return a small cache group of this dtype, or of the device's first."""
    return sample_spec(context.capabilities, **({} if dtype is None else {"dtype": dtype}))


def _small(spec: KVSpec) -> KVSpec:
    return replace(spec, num_layers=2)


def _check_every_layer_is_exported(cache: Cache, generator: torch.Generator) -> None:
    cache.fill(generator)
    for layer in range(cache.spec.num_layers):
        before = cache.export([0])
        cache.write(layer, *cache.random_tokens(cache.spec.block_size, generator), range(cache.spec.block_size))
        assert not torch.equal(cache.export([0]), before), (
            f"block 0 was overwritten in layer {layer}, and export_blocks gives the same bytes: "
            "are all layers exported?"
        )


def _check_found(cache: Cache, layer: int, found: Tensor, value: Tensor, blocks: list[int]) -> None:
    """Compare what attention finds under each key with the value written there."""
    assert found.dtype == value.dtype, f"attention gives {found.dtype} for queries of {value.dtype}."
    # One value is picked, so that nothing but its own rounding to the cache's dtype remains, and some to that of out.
    if cache.spec.dtype in FLOAT8:
        largest = FLOAT8[cache.spec.dtype].largest
        value = value.clamp(-largest, largest)
    exact = as_floats(value)
    rounding = torch.from_numpy(0.51 * steps(exact, cache.spec.dtype)).to(found)
    wrong = ~((found - value).abs() <= rounding + torch.finfo(value.dtype).eps * value.abs().clamp(min=1))
    if not wrong.any():
        return
    position, head, feature = wrong.nonzero()[0].tolist()
    size = cache.spec.block_size
    slot = blocks[position // size] * size + position % size
    place = (position, head, feature)
    raise AssertionError(
        f"layer {layer}: the value written at slot {slot} (block {slot // size}, offset {slot % size}, KV head {head}) "
        f"is not found under its key: {found[place]:.4g} instead of {value[place]:.4g}. "
        f"Was it written to another slot, head or layer, or {_suspected_rounding(cache, found, exact)}?"
    )


def _suspected_rounding(cache: Cache, found: Tensor, exact: Floats) -> str:
    """Say what may be wrong with the numbers themselves."""
    step = steps(exact, cache.spec.dtype)
    if cache.spec.dtype == "int8" and np.abs(as_floats(found) - np.rint(exact / step)).max() < 2:
        return "read without its token's scale"
    if cache.spec.dtype == "int8" and np.abs(as_floats(found)).max() < 2 * np.abs(exact).max():
        return "scaled by another token's or head's largest number"
    return "rounded too far"


def _first_difference(one: Tensor, other: Tensor) -> int | None:
    """Return the first block whose bytes differ."""
    rows = (one != other).any(1).nonzero()
    return int(rows[0]) if len(rows) else None
