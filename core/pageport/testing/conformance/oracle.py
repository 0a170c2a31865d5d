"""The attention oracle: float64, dense, straight from the definition. It knows no blocks, batches or devices."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Formula:
    """``softmax(softcap(q·k·scale) + alibi + mask)·v``: ``AttentionParams`` without its tensors."""

    scale: float
    causal: bool = True
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Floats | None = None  # [heads]
    alibi: Floats | None = None  # [heads]


@dataclass(frozen=True, kw_only=True)
class DenseRequest:
    """One request's keys and values, and the queries at its last positions."""

    query: Floats  # [queries, heads, head_size]
    keys: Floats  # [length, kv_heads, head_size]
    values: Floats  # [length, kv_heads, value_head_size]

    @property
    def length(self) -> int:
        return len(self.keys)

    @property
    def positions(self) -> Integers:
        return np.arange(self.length - len(self.query), self.length)


def attend(
    request: DenseRequest, formula: Formula, seen: Booleans | None = None, kv_head_of: Integers | None = None
) -> Floats:
    """Return [queries, heads, value_head_size].

    Args:
        seen: another mask than the formula's [queries, length].
        kv_head_of: another KV head for each query head than the one it belongs to.
    """
    if seen is None:
        seen = visible(request, formula)
    if kv_head_of is None:
        kv_head_of = kv_heads(request)
    heads = [weights(request, formula, head, kv_head_of[head], seen) for head in range(request.query.shape[1])]
    mixed = [probability @ request.values[:, kv_head] for probability, kv_head in zip(heads, kv_head_of, strict=True)]
    return np.stack(mixed, axis=1)


def weights(request: DenseRequest, formula: Formula, head: int, kv_head: int, seen: Booleans) -> Floats:
    """Return what each query of one head takes of each value [queries, length].

    A sink is one more score, whose value is zero (arXiv:2309.17453).
    """
    scored = np.where(seen, scores(request, formula, head, kv_head), -np.inf)
    peak = scored.max(axis=1, keepdims=True)
    if formula.sinks is not None:
        peak = np.maximum(peak, formula.sinks[head])
    # A faulty mask may hide everything.
    peak = np.where(np.isfinite(peak), peak, 0.0)
    exponentials = np.exp(scored - peak)
    total = exponentials.sum(axis=1, keepdims=True)
    if formula.sinks is not None:
        total += np.exp(formula.sinks[head] - peak)
    result: Floats = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
    return result


def scores(request: DenseRequest, formula: Formula, head: int, kv_head: int) -> Floats:
    """Return unmasked scores [queries, length]: scaled, then capped, then with ALiBi's bias (arXiv:2108.12409)."""
    result: Floats = request.query[:, head] @ request.keys[:, kv_head].T * formula.scale
    if formula.softcap is not None:
        result = formula.softcap * np.tanh(result / formula.softcap)
    if formula.alibi is not None:
        result = result + formula.alibi[head] * (np.arange(request.length) - request.positions[:, None])
    return result


def visible(request: DenseRequest, formula: Formula) -> Booleans:
    """Return which key each query sees [queries, length]: with a window of w the last w up to its own position."""
    distance = request.positions[:, None] - np.arange(request.length)
    seen = np.ones_like(distance, dtype=np.bool_)
    if formula.causal:
        seen &= distance >= 0
    if formula.sliding_window is not None:
        seen &= distance < formula.sliding_window
    return seen


def kv_heads(request: DenseRequest) -> Integers:
    """Return the KV head of each query head: neighbours share one."""
    num_heads, num_kv_heads = request.query.shape[1], request.keys.shape[1]
    result: Integers = np.arange(num_heads) // (num_heads // num_kv_heads)
    return result


def as_floats(values: Any) -> Floats:
    """Return a tensor's numbers on the host, in float64."""
    result: Floats = values.detach().double().cpu().numpy()
    return result
