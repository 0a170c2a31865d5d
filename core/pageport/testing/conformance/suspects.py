"""Faults that attention code has: the oracle's answer with each of them, to tell what a wrong answer comes from."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pageport.testing.conformance.oracle import (
    Booleans,
    DenseRequest,
    Floats,
    Formula,
    attend,
    kv_heads,
    scores,
    visible,
)


class Suspect(NamedTuple):
    """A fault by name, and what attention with it would answer."""

    cause: str
    answer: Callable[[], Floats]


def suspects(request: DenseRequest, formula: Formula, block_size: int) -> Iterator[Suspect]:
    """Yield the faults that are possible with this formula, likely ones first."""
    yield from _windows(request, formula)
    yield from _masks(request, formula, block_size)
    yield from _scores(request, formula)
    yield from _heads(request, formula)
    yield from _blocks(request, formula, block_size)
    # Scenes write the opposite numbers to the other layer.
    elsewhere = replace(request, keys=-request.keys, values=-request.values)
    yield Suspect("keys and values of another layer are read", lambda: attend(elsewhere, formula))


def find_suspect(
    request: DenseRequest, formula: Formula, block_size: int, actual: Floats, tolerance: float
) -> str | None:
    """Return the fault that explains ``actual``, or None."""
    right = attend(request, formula)
    # The right answer is no explanation, so neither is one that comes hardly nearer.
    best, limit = None, max(2 * tolerance, 0.25 * float(np.abs(actual - right).max()))
    for suspect in suspects(request, formula, block_size):
        distance = float(np.abs(actual - suspect.answer()).max())
        if distance < limit:
            best, limit = suspect.cause, distance
    if best is not None:
        return best
    for query, head in np.argwhere(np.abs(actual - right).max(axis=2) > tolerance):
        key = _lone_key(request, formula, int(query), int(head), actual[query, head], 2 * tolerance)
        if key is not None:
            return _about_key(key, int(request.positions[query]), block_size)
    return None


def _windows(request: DenseRequest, formula: Formula) -> Iterator[Suspect]:
    window = formula.sliding_window
    if window is None:
        return
    yield _with(request, formula, "the sliding window is ignored", sliding_window=None)
    yield _with(
        request,
        formula,
        f"the sliding window is off by one: a query sees {window + 1} keys instead of {window}",
        sliding_window=window + 1,
    )
    if window > 1:
        yield _with(
            request,
            formula,
            f"the sliding window is off by one: a query sees {window - 1} keys instead of {window}",
            sliding_window=window - 1,
        )


def _masks(request: DenseRequest, formula: Formula, block_size: int) -> Iterator[Suspect]:
    if not formula.causal:
        yield _with(request, formula, "a mask is causal where none is asked for", causal=True)
        return
    seen, positions, keys = visible(request, formula), request.positions[:, None], np.arange(request.length)
    if len(request.query) == 1:
        newest = request.length - 1
        edge = "a block edge" if newest % block_size == 0 else "the causal mask"
        cause = f"the newest key, at position {newest}, is not seen: is {edge} off by one?"
    else:
        cause = "the causal mask is off by one: a query does not see the key at its own position"
    yield _masked(request, formula, cause, seen & (keys < positions))
    if len(request.query) == 1:
        return
    yield _masked(
        request,
        formula,
        "the causal mask is off by one: a query sees the key behind its own position",
        seen | (keys == positions + 1),
    )
    yield _with(request, formula, "the causal mask is ignored", causal=False)
    if request.length > len(request.query):
        yield _masked(
            request,
            formula,
            f"the mask leaves out the cached prefix of {positions[0, 0]} tokens: query j is taken for position j",
            seen & (keys <= positions - positions[0]),
        )


def _scores(request: DenseRequest, formula: Formula) -> Iterator[Suspect]:
    if formula.softcap is not None:
        yield _with(request, formula, "the soft-cap is ignored", softcap=None)
        yield _with(
            request,
            formula,
            "the soft-cap comes before the scale instead of after it",
            softcap=formula.softcap * formula.scale,
        )
    if formula.sinks is not None:
        yield _with(request, formula, "the sinks are ignored", sinks=None)
    if formula.alibi is not None:
        yield _with(request, formula, "the alibi slopes are ignored", alibi=None)
        yield _with(request, formula, "alibi has the wrong sign: far keys should lose", alibi=-formula.alibi)
    yield _with(request, formula, "scale is ignored", scale=1.0)
    usual = request.query.shape[2] ** -0.5
    if usual != formula.scale:
        yield _with(request, formula, "scale is taken to be 1 / sqrt(head_size) instead of what is given", scale=usual)


def _heads(request: DenseRequest, formula: Formula) -> Iterator[Suspect]:
    num_heads, num_kv_heads = request.query.shape[1], request.keys.shape[1]
    group = num_heads // num_kv_heads
    if 1 < num_kv_heads < num_heads:
        wrong = np.arange(num_heads) % num_kv_heads
        yield Suspect(
            f"wrong GQA mapping: query head h reads KV head h % {num_kv_heads} instead of h // {group}",
            lambda: attend(request, formula, kv_head_of=wrong),
        )
    if num_kv_heads > 1:
        yield Suspect(
            "wrong GQA mapping: every query head reads KV head 0",
            lambda: attend(request, formula, kv_head_of=np.zeros_like(kv_heads(request))),
        )


def _blocks(request: DenseRequest, formula: Formula, block_size: int) -> Iterator[Suspect]:
    seen, keys = visible(request, formula), np.arange(request.length)
    yield _masked(request, formula, "the first key (position 0) is not seen", seen & (keys > 0))
    last_edge = (request.length - 1) // block_size * block_size
    for first in dict.fromkeys((last_edge, 0, *range(0, min(request.length, 8 * block_size), block_size))):
        last = min(first + block_size, request.length) - 1
        yield _masked(
            request,
            formula,
            f"the block with the keys at positions {first} … {last} is not seen: is a block edge off by one?",
            seen & ((keys < first) | (keys > last)),
        )


def _with(request: DenseRequest, formula: Formula, cause: str, **changes: object) -> Suspect:
    return Suspect(cause, lambda: attend(request, replace(formula, **changes)))  # type: ignore[arg-type]


def _masked(request: DenseRequest, formula: Formula, cause: str, seen: Booleans) -> Suspect:
    return Suspect(cause, lambda: attend(request, formula, seen))


class _Key(NamedTuple):
    position: int
    is_seen: bool  # wrongly; else it is wrongly not seen


def _lone_key(
    request: DenseRequest, formula: Formula, query: int, head: int, actual: Floats, tolerance: float
) -> _Key | None:
    """Return the key whose mask is wrong, if it is a single one: every key's mask is turned over in turn."""
    kv_head = int(kv_heads(request)[head])
    scored = scores(request, formula, head, kv_head)[query]
    seen, values = visible(request, formula)[query], request.values[:, kv_head]
    # The largest of all, so that no turned-over key overflows.
    exponentials = np.exp(scored - scored.max())
    total = exponentials[seen].sum()
    if formula.sinks is not None:
        total += np.exp(formula.sinks[head] - scored.max())
    signed = np.where(seen, -exponentials, exponentials)
    with np.errstate(divide="ignore", invalid="ignore"):
        answers = (exponentials[seen] @ values[seen] + signed[:, None] * values) / (total + signed)[:, None]
    distances = np.nan_to_num(np.abs(answers - actual).max(axis=1), nan=np.inf)
    position = int(distances.argmin())
    return _Key(position, not seen[position]) if distances[position] < tolerance else None


def _about_key(key: _Key, query: int, block_size: int) -> str:
    offset = key.position % block_size
    edge = ": is a block edge off by one?" if offset in (0, block_size - 1) else ""
    return f"key at position {key.position} is {'' if key.is_seen else 'not '}seen by query {query}{edge}"
