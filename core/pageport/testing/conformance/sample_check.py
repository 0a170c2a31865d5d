"""Checks of ``sample``: the tokens that the plain-torch reference chooses, row by row, alone and among others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.op_table import compile_ops
from pageport.backend.reference.choose import choose_tokens
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context

# Each with a number of rows of every sort.
VOCAB_SIZES = {1: 1, 7: 8, 64: 8, 1031: 8, 32_003: 1}
# Of logits: nearly flat, as models give them, one token far ahead, many of them equal.
SCALES = {"flat": 0.2, "broad": 2.0, "peaked": 8.0, "tied": 1.0}


class ChoiceRow(NamedTuple):
    """Parameters of a row; ``top_k`` 0 is off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


KINDS: Mapping[str, tuple[ChoiceRow, ...]] = {
    "greedy": (ChoiceRow(0.0), ChoiceRow(0.0, top_k=3, top_p=0.5)),
    "temperature": (ChoiceRow(), ChoiceRow(0.3), ChoiceRow(3.0), ChoiceRow(1e-5)),
    "top_k": (ChoiceRow(top_k=1), ChoiceRow(top_k=5), ChoiceRow(2.0, top_k=40), ChoiceRow(top_k=900)),
    "top_p": (ChoiceRow(top_p=0.5), ChoiceRow(top_p=0.9), ChoiceRow(2.0, top_p=0.99), ChoiceRow(top_p=1e-6)),
    "min_p": (ChoiceRow(min_p=0.05), ChoiceRow(2.0, min_p=0.3), ChoiceRow(min_p=1.0)),
    "all filters": (ChoiceRow(top_k=50, top_p=0.9), ChoiceRow(1.5, 20, 0.8, 0.02), ChoiceRow(top_p=0.9, min_p=0.01)),
}


def sample_checks(dtype: str) -> Iterator[Check]:
    """Yield the checks for logits of one dtype."""
    for kind in KINDS:
        run = partial(check_kind, kind=kind, dtype=dtype)
        yield Check(Level.OPS, f"ops/sample, {kind}/{dtype}", run)
    yield Check(Level.OPS, f"ops/sample, not finite/{dtype}", partial(check_not_finite, dtype=dtype))
    yield Check(Level.OPS, f"ops/sample, place in the batch/{dtype}", partial(check_place, dtype=dtype))


def check_kind(context: Context, kind: str, dtype: str) -> None:
    """Rows of one kind over every size of vocabulary."""
    generator = context.torch_generator()
    for vocab_size, repeats in VOCAB_SIZES.items():
        for spread in SCALES:
            rows = KINDS[kind] * repeats
            given = logits(generator, len(rows), vocab_size, spread).to(getattr(torch, dtype))
            batch = choice_batch(generator, rows, vocab_size)
            found = chosen(context, given, batch)
            what = f"sample, {kind} ({dtype}, vocabulary of {vocab_size}, {spread} logits)"
            _compare(what, found, given, batch)


def check_not_finite(context: Context, dtype: str) -> None:
    """Peaks tell rows with NaN or infinity, and leave the others alone."""
    rows = (ChoiceRow(), ChoiceRow(0.0), ChoiceRow(top_k=5, top_p=0.9)) * 4
    generator = context.torch_generator()
    clean = logits(generator, len(rows), 97, "broad").to(getattr(torch, dtype))
    batch = choice_batch(generator, rows, 97)
    spoilt = clean.clone()
    spoilt[::4, 50], spoilt[1::4, 3], spoilt[2::4] = torch.nan, torch.inf, -torch.inf
    found, expected = chosen(context, spoilt, batch), choose_tokens(spoilt, batch)
    nan_rows = expected.peaks.isnan()
    assert torch.equal(found.peaks.isnan(), nan_rows), "sample: peaks are not NaN exactly in the rows with NaN."
    told = torch.isfinite(found.peaks)
    assert torch.equal(told, torch.isfinite(expected.peaks)), "sample: peaks of rows with infinity are wrong."
    assert bool(((found.token_ids >= 0) & (found.token_ids < 97)).all()), "sample: a token id is out of range."
    others = found.token_ids[told], expected.token_ids[told]
    assert torch.equal(*others), "sample: a row that is not finite changes its neighbours."


def check_place(context: Context, dtype: str) -> None:
    """A row's token is the same wherever it stands, whatever the others are, and alone."""
    rows = tuple(row for kind in KINDS.values() for row in kind) * 3
    generator = context.torch_generator()
    given = logits(generator, len(rows), 1031, "broad").to(getattr(torch, dtype))
    batch = choice_batch(generator, rows, 1031)
    expected = chosen(context, given, batch).token_ids
    order = torch.randperm(len(rows), generator=generator)
    for picked in (order, *order[:, None][:9]):
        found = chosen(context, given[picked], select_rows(batch, picked)).token_ids
        what = "in another order" if len(picked) > 1 else "alone"
        assert torch.equal(found, expected[picked]), f"sample: a row {what} gets another token."


def logits(generator: torch.Generator, rows: int, vocab_size: int, spread: str) -> Tensor:
    """Draw logits on the host."""
    values = SCALES[spread] * torch.randn((rows, vocab_size), generator=generator)
    return (2 * values).round() if spread == "tied" else values


def choice_batch(generator: torch.Generator, rows: Sequence[ChoiceRow], vocab_size: int) -> ChoiceBatch:
    """Return parameters on the host, with seeds and positions that use all their bits."""
    count = len(rows)
    seeds = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator)
    top_k = [min(row.top_k, vocab_size) or vocab_size for row in rows]
    has_filter = [k < vocab_size or row.top_p < 1 or row.min_p > 0 for k, row in zip(top_k, rows, strict=True)]
    is_filtered = np.array(has_filter)
    is_random = np.array([row.temperature > 0 for row in rows])
    return ChoiceBatch(
        temperatures=torch.tensor([row.temperature for row in rows]),
        top_p=torch.tensor([row.top_p for row in rows]),
        min_p=torch.tensor([row.min_p for row in rows]),
        top_k=torch.tensor(top_k),
        seeds=seeds,
        positions=torch.arange(count) * 37 % 1000,
        plain_rows=np.flatnonzero(is_random & ~is_filtered),
        filtered_rows=np.flatnonzero(is_random & is_filtered),
    )


def select_rows(batch: ChoiceBatch, rows: Tensor) -> ChoiceBatch:
    """Return the batch of some rows, in this order."""
    place = {row: i for i, row in enumerate(rows.tolist())}
    return replace(
        _each_tensor(batch, lambda values: values[rows]),
        plain_rows=np.array(sorted(place[row] for row in batch.plain_rows.tolist() if row in place), dtype=np.int64),
        filtered_rows=np.array(
            sorted(place[row] for row in batch.filtered_rows.tolist() if row in place), dtype=np.int64
        ),
    )


def chosen(context: Context, given: Tensor, batch: ChoiceBatch) -> Choice:
    """Let the device choose, and check that it gives what it should and changes nothing."""
    where = context.device.torch_device
    there = given.to(where, copy=True)
    choice = compile_ops(context.device).sample(there, batch_on(where, batch))
    assert torch.equal(there.cpu().nan_to_num(), given.nan_to_num()), "sample changes the logits it is given."
    token_ids, peaks = choice.token_ids, choice.peaks
    assert token_ids.dtype == torch.int64, f"sample gives token ids of {token_ids.dtype}, not torch.int64."
    assert peaks.dtype == torch.float32, f"sample gives peaks of {peaks.dtype}, not torch.float32."
    assert token_ids.shape == peaks.shape == given.shape[:1], f"sample gives {list(token_ids.shape)} token ids."
    return Choice(token_ids.cpu(), peaks.cpu())


def batch_on(where: torch.device, batch: ChoiceBatch) -> ChoiceBatch:
    """Return the same parameters on a device."""
    return _each_tensor(batch, lambda values: values.to(where))


def _compare(what: str, found: Choice, given: Tensor, batch: ChoiceBatch) -> None:
    expected = choose_tokens(given, batch)
    assert torch.equal(found.peaks, expected.peaks), f"{what}: peaks are not the largest logits."
    wrong = found.token_ids != expected.token_ids
    if not wrong.any():
        return
    cause = ""
    for name, fault in _suspects(batch, given.shape[1]):
        if torch.equal(choose_tokens(given, fault).token_ids, found.token_ids):
            cause = f" {name}:"
            break
    row = int(wrong.nonzero()[0])
    raise AssertionError(
        f"{what}:{cause} row {row} gets token {int(found.token_ids[row])}, not {int(expected.token_ids[row])}; "
        f"{int(wrong.sum())} of {len(wrong)} rows are wrong."
    )


def _suspects(batch: ChoiceBatch, vocab_size: int) -> Iterator[tuple[str, ChoiceBatch]]:
    """Yield likely faults: each as the batch for which the reference would choose the same."""
    yield "positions are not used", replace(batch, positions=torch.zeros_like(batch.positions))
    yield "positions start at 1", replace(batch, positions=batch.positions + 1)
    yield "half of the seed is not used", replace(batch, seeds=batch.seeds & 0xFFFFFFFF)
    yield "temperatures are not used", replace(batch, temperatures=(batch.temperatures > 0).float())
    yield "top_p is not used", replace(batch, top_p=torch.ones_like(batch.top_p))
    yield "min_p is not used", replace(batch, min_p=torch.zeros_like(batch.min_p))
    yield "top_k is not used", replace(batch, top_k=torch.full_like(batch.top_k, vocab_size))
    nothing = np.zeros(0, dtype=np.int64)
    yield "the likeliest token is chosen everywhere", replace(batch, plain_rows=nothing, filtered_rows=nothing)


def _each_tensor(batch: ChoiceBatch, change: Callable[[Tensor], Tensor]) -> ChoiceBatch:
    return replace(
        batch,
        temperatures=change(batch.temperatures),
        top_p=change(batch.top_p),
        min_p=change(batch.min_p),
        top_k=change(batch.top_k),
        seeds=change(batch.seeds),
        positions=change(batch.positions),
    )
