"""Level 3: paged attention against a dense float64 oracle, over the shapes and variants the device declares.

Grids are sampled: each value of an axis meets several values of the others, not all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any, NamedTuple

import torch

from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import AttentionParams
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.attention_case import AttentionCase, Row, decodes_first, typical
from pageport.testing.conformance.attention_verdict import check_case, check_step
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.declared import ATTENTION_VARIANTS
from pageport.testing.conformance.kv_rounding import EIGHT_BITS, FLOAT8
from pageport.testing.conformance.scene import Scene

# (query heads, KV heads)
HEAD_COUNTS = ((2, 2), (4, 2), (6, 2), (8, 2), (8, 1), (16, 2), (4, 1))
# Where a device takes any head size.
HEAD_SIZES = (16, 32, 64, 80, 96, 128, 192, 256)
LONG = 4097


class NamedCase(NamedTuple):
    """What is behind ``attention/<name>``."""

    name: str
    case: AttentionCase


def checks(context: Context) -> Iterator[Check]:
    """Yield the checks that apply to what the device declares."""
    capabilities = context.capabilities
    for name, case in grid(capabilities):
        yield Check(Level.ATTENTION, f"attention/{name}", partial(check_case, case=case))
    usual = typical(capabilities)
    yield from _sequence_checks(capabilities, usual)
    yield from _refusal_checks(capabilities, usual)
    yield from _optional_checks(capabilities, usual)


def grid(capabilities: Capabilities) -> Iterator[NamedCase]:
    """Yield the cases of one step."""
    usual = typical(capabilities)
    yield from _heads(capabilities, usual)
    yield from _lengths(capabilities, usual)
    yield from _dtypes(capabilities, usual)
    yield from _variants(capabilities, usual)
    yield from _windows(capabilities, usual)
    yield from _batches(capabilities, usual)


def mixed_rows(block_size: int) -> tuple[Row, ...]:
    """Decodes, a prompt, a chunk behind a cached prefix and several queries at a block's edge, in one step."""
    size = block_size
    return (
        Row(1),
        Row(size),
        Row(size + 1),
        Row(2 * size - 1),
        Row(7, 7),
        Row(size + 9, 5),
        Row(2 * size + 1, size + 1),
    )


def _heads(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    """Every head size meets every block size; head counts take turns."""
    head_sizes = capabilities.head_sizes or HEAD_SIZES
    for outer, head_size in enumerate(head_sizes):
        for inner, block_size in enumerate(capabilities.block_sizes):
            num_heads, num_kv_heads = HEAD_COUNTS[(outer + inner) % len(HEAD_COUNTS)]
            case = replace(
                usual,
                rows=mixed_rows(block_size),
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_size=head_size,
                block_size=block_size,
            )
            yield NamedCase(f"heads/{num_heads} over {num_kv_heads}, head {head_size}, block {block_size}", case)
    for num_heads, num_kv_heads in HEAD_COUNTS:
        case = replace(usual, rows=mixed_rows(usual.block_size), num_heads=num_heads, num_kv_heads=num_kv_heads)
        yield NamedCase(f"heads/{num_heads} over {num_kv_heads}", case)


def _lengths(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    """Lengths around the edges of one and two blocks, as decodes, whole prompts and chunks; a few long ones."""
    for block_size in capabilities.block_sizes:
        case = replace(usual, block_size=block_size)
        edges = sorted(
            {1, block_size - 1, block_size, block_size + 1, 2 * block_size - 1, 2 * block_size, 2 * block_size + 1}
            - {0}
        )
        yield NamedCase(f"lengths/decode, block {block_size}", replace(case, rows=tuple(Row(edge) for edge in edges)))
        yield NamedCase(
            f"lengths/prompt, block {block_size}", replace(case, rows=tuple(Row(edge, edge) for edge in edges))
        )
        chunks = [Row(edge + count, count) for edge in edges for count in (1, 3)] + [
            Row(edge + block_size + 1, block_size + 1) for edge in edges if block_size <= 64
        ]
        yield NamedCase(
            f"lengths/chunk behind a cached prefix, block {block_size}", replace(case, rows=decodes_first(chunks))
        )
    for block_size in sorted({min(capabilities.block_sizes), usual.block_size, max(capabilities.block_sizes)}):
        case = replace(usual, block_size=block_size, head_size=min(capabilities.head_sizes or (64,)))
        rows = (Row(LONG), Row(LONG - 1), Row(5), Row(LONG, 40), Row(3000, 130))
        yield NamedCase(f"lengths/up to {LONG}, block {block_size}", replace(case, rows=rows))
    yield NamedCase("lengths/long prompt", replace(usual, rows=(Row(1025, 1025),)))


def _dtypes(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    rows = (*mixed_rows(usual.block_size)[:3], Row(1500), *mixed_rows(usual.block_size)[3:])
    for compute, kept in product(capabilities.compute_dtypes, capabilities.kv_dtypes):
        case = replace(usual, compute_dtype=compute, kv_dtype=kept, rows=decodes_first(rows))
        yield NamedCase(f"dtypes/{compute} over {kept}", case)
    for kept, head_size in product(_eight_bits(capabilities), capabilities.head_sizes or HEAD_SIZES):
        # Further from 1 / sqrt(head_size) than elsewhere: int8's tolerance is wide.
        case = replace(usual, kv_dtype=kept, head_size=head_size, rows=mixed_rows(usual.block_size), scale=0.4)
        yield NamedCase(f"dtypes/{usual.compute_dtype} over {kept}, head {head_size}", case)
        if "sliding" in capabilities.kv_kinds:
            windowed = _with_variants(case, ("sliding_window",), usual.block_size + 5, capabilities)
            yield NamedCase(f"dtypes/{usual.compute_dtype} over {kept}, head {head_size}, window", windowed)


def _variants(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    """Each variant alone and with each other one; windows of every kind of size."""
    declared = [variant for variant in ATTENTION_VARIANTS if variant in capabilities.attention_variants]
    size = usual.block_size
    rows = (
        Row(1),
        Row(size + 1),
        # Longer than the window, but by less than a block: none is freed.
        Row(size + 9),
        Row(5 * size),
        Row(5 * size + 2),
        Row(9, 9),
        Row(4 * size + 3, size + 5),
        Row(3 * size, 2),
    )
    for chosen in [*((variant,) for variant in declared), *combinations(declared, 2)]:
        case = _with_variants(replace(usual, rows=rows, num_heads=8), chosen, size + 5, capabilities)
        yield NamedCase(f"variants/{' and '.join(chosen)}", case)
        for dtype in capabilities.compute_dtypes:
            if dtype != usual.compute_dtype and dtype in capabilities.kv_dtypes and len(chosen) == 1:
                yield NamedCase(f"variants/{chosen[0]}, {dtype}", replace(case, compute_dtype=dtype, kv_dtype=dtype))


def _windows(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    """Windows of every kind of size, over rows that fill and just overflow them."""
    if "sliding_window" not in capabilities.attention_variants:
        return
    sizes = capabilities.block_sizes
    for size in sorted({min(sizes), usual.block_size, max(sizes)}):
        for window in sorted({1, 2, size - 1, size, size + 1, 3 * size, 1000} - {0}):
            rows = (*(Row(length) for length in (1, 3 * size, 3 * size + 1, 3 * size + 2)), Row(3 * size + 7, 7))
            case = replace(usual, rows=(*rows, Row(size + 3, size + 3)), block_size=size, num_heads=8)
            yield NamedCase(
                f"windows/{window}, block {size}", _with_variants(case, ("sliding_window",), window, capabilities)
            )


def _with_variants(
    case: AttentionCase, variants: tuple[str, ...], window: int, capabilities: Capabilities
) -> AttentionCase:
    changes: dict[str, Any] = {}
    if "sliding_window" in variants:
        kind = "sliding" if "sliding" in capabilities.kv_kinds else "full"
        changes |= {"sliding_window": window, "kind": kind}
    if "softcap" in variants:
        # Low enough to bend the scores of interest.
        changes["softcap"] = 6.0
    return replace(case, **changes, has_sinks="sinks" in variants, has_alibi="alibi" in variants)


def _batches(capabilities: Capabilities, usual: AttentionCase) -> Iterator[NamedCase]:
    """What a step may look like."""
    rows = mixed_rows(usual.block_size)
    decodes, prefills = rows[:4], rows[4:]
    yield NamedCase("batch/decodes only", replace(usual, rows=decodes))
    yield NamedCase("batch/one decode", replace(usual, rows=decodes[1:2]))
    yield NamedCase("batch/many decodes", replace(usual, rows=tuple(Row(1 + 7 * index % 90) for index in range(70))))
    yield NamedCase("batch/prefills only", replace(usual, rows=prefills))
    yield NamedCase("batch/one prompt", replace(usual, rows=prefills[:1]))
    yield NamedCase("batch/empty", replace(usual, rows=()))
    yield NamedCase("batch/decodes with padding", replace(usual, rows=(*decodes, Row(0), Row(0))))
    yield NamedCase("batch/only padding", replace(usual, rows=(Row(0), Row(0))))
    yield NamedCase("batch/prefills with padding", replace(usual, rows=(*prefills, Row(0, 3), Row(0))))
    yield NamedCase("batch/more table than needed", replace(usual, rows=rows, extra_columns=5))
    yield NamedCase(
        "batch/decodes with more table than needed", replace(usual, rows=(*decodes, Row(0)), extra_columns=5)
    )
    yield NamedCase("batch/contiguous query", replace(usual, rows=rows, is_strided=False))
    yield NamedCase("batch/one-token chunks that are no decodes", replace(usual, rows=rows, has_decodes=False))
    longest = capabilities.max_decode_query_len
    if longest > 1:
        several = tuple(
            Row(usual.block_size * (index % 3) + longest + index, 1 + index % longest) for index in range(9)
        )
        case = replace(usual, rows=several, max_decode_query_len=longest)
        yield NamedCase("batch/several queries in a decode", case)
        yield NamedCase("batch/several queries in a decode, with prefills", replace(case, rows=(*several, Row(50, 30))))
    if capabilities.mixed_batches and not capabilities.decode_first:
        yield NamedCase("batch/any order", replace(usual, rows=tuple(reversed(rows)), has_decodes=False))


def _sequence_checks(capabilities: Capabilities, usual: AttentionCase) -> Iterator[Check]:
    """Whole histories, written and read step by step."""
    size = usual.block_size
    case = replace(usual, rows=(Row(3 * size + 2), Row(size + 30), Row(2 * size)))
    yield Check(Level.ATTENTION, "attention/sequence/prompt in chunks, then decodes", _sequence(case))
    for kept in _eight_bits(capabilities):
        name = f"attention/sequence/prompt in chunks, then decodes, over {kept}"
        yield Check(Level.ATTENTION, name, _sequence(replace(case, kv_dtype=kept)))
    if "sliding_window" in capabilities.attention_variants:
        for window in (size - 1, 2 * size) if size > 1 else (2,):
            sliding = _with_variants(case, ("sliding_window",), window, capabilities)
            name = f"attention/sequence/prompt in chunks, then decodes, window {window}"
            yield Check(Level.ATTENTION, name, _sequence(sliding))


def _refusal_checks(capabilities: Capabilities, usual: AttentionCase) -> Iterator[Check]:
    for variant in ATTENTION_VARIANTS:
        if variant not in capabilities.attention_variants:
            yield Check(Level.ATTENTION, f"attention/refused/{variant}", _refused(variant, usual))


def _optional_checks(capabilities: Capabilities, usual: AttentionCase) -> Iterator[Check]:
    """What no capability speaks of: right, or refused by ``check_attention`` or ``allocate_kv``."""
    rows = mixed_rows(usual.block_size)
    wider = replace(usual, rows=rows, value_head_size=usual.head_size * 2)
    yield Check(Level.ATTENTION, "attention/right or refused/values wider than keys", _right_or_refused(wider))
    everywhere = replace(usual, rows=rows, causal=False)
    yield Check(Level.ATTENTION, "attention/right or refused/not causal", _right_or_refused(everywhere))
    for kept in (name for name in capabilities.kv_dtypes if name in FLOAT8):
        scaled = replace(usual, rows=rows, kv_dtype=kept, has_scales=True)
        yield Check(Level.ATTENTION, f"attention/right or refused/{kept} with scales", _right_or_refused(scaled))


def _sequence(case: AttentionCase) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        with Scene(context.device, case, context.numpy_generator()) as scene:
            for counts in _turns([row.length for row in case.rows], context.capabilities.mixed_batches):
                rows = [
                    Row(history.written + count, count) for history, count in zip(scene.histories, counts, strict=True)
                ]
                present = [row.queries > 1 for row in rows if row.queries]
                num_decodes = present.index(True) if True in present else len(present)
                check_step(context, scene, scene.step(rows, num_decodes))

    return run


def _turns(lengths: Sequence[int], may_mix: bool) -> list[list[int]]:
    """Return how many tokens of each request each step has: two uneven chunks of its prompt, then single tokens.

    Each request starts two steps after the one before, or, where steps cannot be mixed, when that has ended.
    """
    turns: list[list[int]] = []
    start = 0
    for request, length in enumerate(lengths):
        chunks = [length // 3, length // 2 - 1]
        chunks += (length - sum(chunks)) * [1]
        for turn, count in enumerate(chunks, start):
            while len(turns) <= turn:
                turns.append(len(lengths) * [0])
            turns[turn][request] = count
        start += 2 if may_mix else len(chunks)
    return turns


def _refused(variant: str, usual: AttentionCase) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        device = context.device
        per_head = torch.ones(usual.num_heads, device=device.torch_device)
        values: dict[str, Any] = {"sliding_window": 8, "softcap": 5.0, "sinks": per_head, "alibi": per_head}
        params = AttentionParams(scale=1.0, **{variant: values[variant]})
        try:
            device.check_attention(usual.kv_spec, usual.num_heads, params)
        except UnsupportedFeature as error:
            assert variant in str(error), f"check_attention refuses {variant} without naming it: {error}"
            return
        raise AssertionError(
            f"check_attention accepts {variant}, which attention_variants does not declare "
            f"({', '.join(device.capabilities.attention_variants) or 'none'}). Declare it, or raise UnsupportedFeature."
        )

    return run


def _right_or_refused(case: AttentionCase) -> Callable[[Context], None]:
    def run(context: Context) -> None:
        try:
            check_case(context, case)
        except UnsupportedFeature as error:
            context.measured = f"refused: {error}"

    return run


def _eight_bits(capabilities: Capabilities) -> list[str]:
    return [name for name in capabilities.kv_dtypes if name in EIGHT_BITS]
