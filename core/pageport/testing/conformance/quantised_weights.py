"""Checks of what becomes of weights that are quantised while loading: a form of the device's own.

What a device made of a matrix is read back through ``embed``: those numbers are near the stored ones, and ``linear``
multiplies by those numbers.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pageport.backend.weights import BLOCK_SCHEMES
from pageport.config import QUANTISATIONS, Quantisation
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.cache import bucket
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.prepared_weight import (
    IN_FEATURES,
    Prepared,
    activations,
    check_product,
    prepare,
    token_buckets,
    weight_spec,
)
from pageport.testing.conformance.stored_matrix import random_matrix

OUT_FEATURES = 72
# The coarsest form of each: the largest magnitude of so many weights of a row (None: of all) is so many steps.
COARSEST: dict[str, tuple[int | None, int]] = {"int8": (None, 127), "int4": (128, 7)}
# Bytes a weight with its share of scales takes.
BYTES = {"int8": (1.0, 1.2), "int4": (0.5, 0.8)}


def quantisation_checks(context: Context) -> Iterator[Check]:
    """Yield the checks for the quantisations the device declares, and the refusals of others."""
    capabilities = context.capabilities
    for quantisation in QUANTISATIONS:
        if quantisation not in capabilities.quantisations:
            yield _check(f"refused/quantisation {quantisation}", partial(check_refused, quantisation=quantisation))
            continue
        for dtype in capabilities.compute_dtypes:
            yield _check(
                f"quantised/{quantisation}, {dtype}",
                partial(check_quantised, quantisation=quantisation, dtype=dtype),
            )
        for name, run in {
            "any size": check_sizes,
            "fused parts": check_fused,
            "shards": check_shards,
            "memory": check_memory,
        }.items():
            yield _check(f"quantised/{quantisation}, {name}", partial(run, quantisation=quantisation))


def check_quantised(context: Context, quantisation: Quantisation, dtype: str) -> None:
    """Plain and block-quantised matrices become near ones, which is what is multiplied by."""
    kept = [scheme for scheme in context.capabilities.weight_schemes if scheme in BLOCK_SCHEMES]
    for scheme in dict.fromkeys(["f32", "bf16", "f16", "q4_1", *kept[:2]]):
        matrix = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, context.torch_generator())
        prepared = prepare(context, [matrix], dtype, quantisation=quantisation)
        _check_weight(context, prepared, f"a {scheme} matrix quantised to {quantisation}, in {dtype}", (1, 5, 33))


def check_sizes(context: Context, quantisation: Quantisation) -> None:
    """Rows of any length, and any number of them."""
    dtype = context.capabilities.compute_dtypes[0]
    for rows, columns in ((1, 32), (7, 40), (33, 200), (130, 96)):
        matrix = random_matrix("f32", rows, columns, context.torch_generator())
        prepared = prepare(context, [matrix], dtype, quantisation=quantisation)
        _check_weight(context, prepared, f"a matrix of {rows} x {columns} quantised to {quantisation}", (1, 9))


def check_fused(context: Context, quantisation: Quantisation) -> None:
    """Parts of several schemes, one large and one small, are one matrix; a bias is added."""
    generator = context.torch_generator()
    dtype = context.capabilities.compute_dtypes[0]
    parts = [random_matrix(scheme, 32, IN_FEATURES, generator) for scheme in ("f32", "q8_0", "bf16")]
    prepared = prepare(context, parts, dtype, quantisation=quantisation)
    _check_weight(context, prepared, f"fused parts quantised to {quantisation}", (3,))
    x = activations(context, 3, dtype)
    bias = torch.randn(len(prepared.values), generator=generator).to(x)
    exact = _with_values(prepared, _looked_up(context, prepared))
    check_product(exact, x, f"fused parts quantised to {quantisation}, with a bias", bias=bias)


def check_shards(context: Context, quantisation: Quantisation) -> None:
    """A rank quantises its share of rows or of columns."""
    dtype = context.capabilities.compute_dtypes[0]
    matrix = random_matrix("f32", OUT_FEATURES, IN_FEATURES, context.torch_generator())
    for axis, rank in ((0, 1), (1, 0), (1, 1)):
        values = matrix.values.chunk(2, dim=axis)[rank]
        shard = {"shard_rank": rank, "shard_world_size": 2, "shard_axis": axis}
        prepared = prepare(context, [matrix], dtype, values, quantisation=quantisation, **shard)
        what = f"{'columns' if axis else 'rows'} of rank {rank} of 2 quantised to {quantisation}"
        _check_weight(context, prepared, what, (3,))


def check_memory(context: Context, quantisation: Quantisation) -> None:
    """A quantised matrix takes about the bytes its name says, and nothing of the file."""
    matrix = random_matrix("f32", 8 * OUT_FEATURES, IN_FEATURES, context.torch_generator())
    prepared = prepare(context, [matrix], context.capabilities.compute_dtypes[0], quantisation=quantisation)
    matrix.stored.read()["weight"].zero_()
    _check_weight(context, prepared, f"quantised to {quantisation}, after the file's tensor was overwritten", (3,))
    taken = prepared.device.weight_bytes(prepared.weight) / prepared.values.numel()
    low, high = BYTES[quantisation]
    assert low <= taken <= high, (
        f"a matrix quantised to {quantisation} takes {taken:.2f} bytes a weight; {low} to {high} are expected."
    )


def check_refused(context: Context, quantisation: Quantisation) -> None:
    """A quantisation that is not declared is refused, and the error names it."""
    matrix = random_matrix("f32", OUT_FEATURES, IN_FEATURES, context.torch_generator())
    spec = weight_spec([matrix], context.capabilities.compute_dtypes[0], quantisation=quantisation)
    try:
        context.device.prepare_weight(spec, [matrix.stored])
    except UnsupportedFeature as error:
        assert quantisation in str(error), f"the error for {quantisation} does not name it: {error}"
        return
    raise AssertionError(
        f"a matrix to be quantised to {quantisation}, which quantisations does not declare, was accepted: declare it, "
        "or raise UnsupportedFeature."
    )


def _check_weight(context: Context, prepared: Prepared, what: str, row_counts: tuple[int, ...]) -> None:
    looked_up = _looked_up(context, prepared)
    _check_near(prepared, looked_up, what)
    exact = _with_values(prepared, looked_up)
    for count in row_counts:
        x = activations(context, count, prepared.spec.compute_dtype, prepared.values.shape[1])
        check_product(exact, x, f"{what}: {len(x)} rows, compared with the numbers that embed gives")


def _looked_up(context: Context, prepared: Prepared) -> Tensor:
    """Return every row of the weight, float64 on the host."""
    buckets = token_buckets(context)
    step = buckets[-1] if buckets else len(prepared.values)
    rows = []
    for start in range(0, len(prepared.values), step):
        ids = torch.arange(start, min(start + step, len(prepared.values)))
        padded = functional.pad(ids, (0, bucket(len(ids), buckets) - len(ids)))
        rows.append(prepared.device.embed(prepared.weight, padded.to(prepared.device.torch_device))[: len(ids)])
    prepared.device.synchronize()
    return torch.cat(rows).double().cpu()


def _check_near(prepared: Prepared, found: Tensor, what: str) -> None:
    assert found.shape == prepared.values.shape, f"{what}: embed gives {list(found.shape)}."
    size, num_steps = COARSEST[str(prepared.spec.quantisation)]
    step = _largest_of_groups(prepared.values, size) / num_steps
    off = found - prepared.values
    # A quarter more: scales may be rounded, or chosen to cut off the largest number of a group.
    wrong = ~(off.abs() <= 1.25 * step)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} weights are far from what is stored, first [{row}, "
            f"{column}]: {found[row, column]:.4g} instead of {prepared.values[row, column]:.4g}, with steps of at most "
            f"{step[row, column]:.2g} (the largest of {size or 'a row'} over {num_steps})."
        )
    # Rounding to nearest is off by a step over the root of 12 on average, cutting off by twice that.
    average, expected = float(off.square().mean().sqrt()), float(step.square().mean().div(12).sqrt())
    assert average <= 1.4 * expected, (
        f"{what}: weights are off by {average:.2g} on average, where rounding to nearest with steps of at most the "
        f"largest of {size or 'a row'} over {num_steps} is off by {expected:.2g}: are numbers cut off?"
    )


def _largest_of_groups(values: Tensor, size: int | None) -> Tensor:
    """Return for each weight the largest magnitude of its group in its row."""
    rows, columns = values.shape
    size = size or columns
    groups = functional.pad(values.abs(), (0, -columns % size)).view(rows, -1, size)
    return groups.amax(2, keepdim=True).expand_as(groups).reshape(rows, -1)[:, :columns]


def _with_values(prepared: Prepared, values: Tensor) -> Prepared:
    return Prepared(prepared.device, prepared.weight, values, prepared.spec, prepared.activation_group)


def _check(name: str, run: Callable[..., Any]) -> Check:
    return Check(Level.KV_AND_WEIGHTS, f"weights/{name}", run)
