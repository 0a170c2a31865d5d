"""``Prepared``: a weight on the device under test, compared with the float64 product.

The oracle is what the gguf package reads from the stored matrix, not the reference implementation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pageport.backend.capabilities import Capabilities
from pageport.backend.device import Device
from pageport.backend.weights import BLOCK_SCHEMES, WeightSpec
from pageport.testing.conformance.cache import bucket
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.stored_matrix import StoredMatrix, block_size

# Long enough that errors average out, whole blocks of every scheme when halved.
IN_FEATURES = 512
# Rounding to a dtype changes a number by at most this share of it.
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# In the small dtypes every weight is rounded once, by a third of a unit on average, and sums are kept in float32:
# independent errors add up to that share of the vector's length; 3 is nine times as much. A sum in float32 may round
# after each of n additions, when it is already longer than the vector by chance.
FACTOR = {"float32": 6 * IN_FEATURES**0.5, "bfloat16": 3.0, "float16": 3.0}
# Standard deviations that a sum of independent errors may be off by.
SIGMAS = 6


@dataclass(frozen=True)
class Prepared:
    """A weight on the device, and what it should be."""

    device: Device
    weight: Any
    values: Tensor  # float64 [out_features, in_features]
    spec: WeightSpec
    # So many activations may share a scale of 8-bit ones; None: they are not rounded.
    activation_group: int | None

    def linear(self, x: Tensor, **arguments: Tensor) -> Tensor:
        result = self.device.linear(self.weight, x, **arguments)
        self.device.synchronize()
        return result


def prepare(
    context: Context, parts: Sequence[StoredMatrix], dtype: str, values: Tensor | None = None, **changes: Any
) -> Prepared:
    """Prepare parts as one weight; ``values`` is what it should be where that is not all the parts."""
    capabilities = context.capabilities
    spec = weight_spec(parts, dtype, **changes)
    return Prepared(
        context.device,
        context.device.prepare_weight(spec, [part.stored for part in parts]),
        torch.cat([part.values for part in parts]) if values is None else values,
        spec,
        activation_group=_activation_group(capabilities, spec, parts),
    )


def activations(context: Context, count: int, dtype: str, features: int = IN_FEATURES) -> Tensor:
    """Return ``count`` random rows on the device, or as many as the next bucket where shapes are static."""
    generator = context.torch_generator()
    # Other numbers than those of the weight.
    generator.manual_seed(generator.initial_seed() + 1)
    x = torch.randn(bucket(count, token_buckets(context)), features, generator=generator)
    return x.to(context.device.torch_device, getattr(torch, dtype))


def token_buckets(context: Context) -> Sequence[int]:
    """Return the numbers of rows that a step may have; empty: any."""
    return context.capabilities.token_buckets if context.capabilities.static_shapes else ()


def check_product(prepared: Prepared, x: Tensor, what: str, **arguments: Tensor) -> None:
    """Multiply and compare with the float64 product."""
    dtype = prepared.spec.compute_dtype
    result = prepared.linear(x, **arguments)
    assert result.dtype == x.dtype, f"{what}: linear gives {result.dtype} for activations of {x.dtype}."
    shape = (len(x), len(prepared.values))
    assert tuple(result.shape) == shape, f"{what}: linear gives the shape {tuple(result.shape)} instead of {shape}."
    exact_x = x.double().cpu()
    expected = exact_x @ prepared.values.T
    if "bias" in arguments:
        expected += arguments["bias"].double().cpu()
    # The length of the vector of products: errors that are independent of each other add up to a share of it.
    length = (exact_x.square() @ prepared.values.square().T).sqrt()
    tolerance = FACTOR[dtype] * UNIT[dtype] * length + 2 * UNIT[dtype] * expected.abs()
    if prepared.activation_group is not None:
        # A scale may be rounded to 11 bits.
        tolerance += 2.0**-11 * length + SIGMAS * _activation_error(exact_x, prepared.values, prepared.activation_group)
    _check_close(result, expected, tolerance, what)


def check_rows(rows: Tensor, expected: Tensor, dtype: str, what: str) -> None:
    """Compare looked-up rows, which are rounded once to the compute dtype."""
    assert rows.dtype == getattr(torch, dtype), f"{what} gives {rows.dtype} instead of {dtype}."
    shape = tuple(expected.shape)
    assert tuple(rows.shape) == shape, f"{what} gives the shape {tuple(rows.shape)} instead of {shape}."
    # The second term: differences of scaled integers in float32, and numbers below float16's normal range.
    _check_close(rows, expected, 1.01 * UNIT[dtype] * expected.abs() + 2.0**-22, what)


def _activation_group(capabilities: Capabilities, spec: WeightSpec, parts: Sequence[StoredMatrix]) -> int | None:
    """Return how many activations share a scale: as many as a block has weights, or a row's where that is the form."""
    if not capabilities.quantises_activations or spec.dequantise:
        return None
    if spec.quantisation is not None:
        return spec.in_features
    schemes = {part.stored.scheme for part in parts} & set(capabilities.weight_schemes) & set(BLOCK_SCHEMES)
    return max((block_size(scheme) for scheme in schemes), default=None)


def _activation_error(x: Tensor, values: Tensor, group: int) -> Tensor:
    """Return the standard deviation of a product whose activations are rounded to 127ths of their group's largest.

    Rounding is off by a step over the root of 12, each activation for itself.
    """
    groups, weights = (
        functional.pad(matrix, (0, -matrix.shape[1] % group)).view(len(matrix), -1, group) for matrix in (x, values)
    )
    steps = groups.abs().amax(2) / 127
    return (steps.square() @ weights.square().sum(2).T / 12).sqrt()


def _check_close(result: Tensor, expected: Tensor, tolerance: Tensor, what: str) -> None:
    found = result.double().cpu()
    assert not found.isnan().any(), (
        f"{what}: NaN at row {found.isnan().nonzero()[0].tolist()}, though no input is. Was out read?"
    )
    wrong = (found - expected).abs() > tolerance
    if not wrong.any():
        return
    row, column = wrong.nonzero()[0].tolist()
    raise AssertionError(
        f"{what}: {int(wrong.sum())} of {wrong.numel()} results are off, first [{row}, {column}]: "
        f"{found[row, column]:.6g} instead of {expected[row, column]:.6g} (within {tolerance[row, column]:.1g}); "
        f"columns {int(wrong.any(0).nonzero()[0])} to {int(wrong.any(0).nonzero()[-1])} are concerned."
    )


def weight_spec(parts: Sequence[StoredMatrix], dtype: str, **changes: Any) -> WeightSpec:
    return WeightSpec(
        name="layers.0.conformance",
        out_features=sum(part.stored.shape[0] for part in parts),
        in_features=parts[0].stored.shape[1],
        compute_dtype=dtype,
        **changes,
    )
