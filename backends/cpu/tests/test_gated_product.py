"""silu(gate) * up of a product in one pass: against float64, and bit by bit what a product and then silu_mul give."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pageport.testing.conformance.stored_matrix import random_matrix
from pageport_cpu.activations import silu_mul
from pageport_cpu.float_weight import FloatWeight, pack_float
from pageport_cpu.library import Library
from pageport_cpu.quantised_weight import QuantisedWeight, pack_blocks, quantise
from pageport_cpu.weights import Weight

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Inputs of several groups and blocks, outputs of more than one tile of panels.
IN_FEATURES, FEATURES = 288, 96


def dense(out_features: int) -> Tensor:
    return torch.randn(out_features, IN_FEATURES, generator=torch.Generator().manual_seed(1)) / IN_FEATURES**0.5


def packed(library: Library, scheme: str, out_features: int = 2 * FEATURES) -> FloatWeight | QuantisedWeight:
    if scheme in ("float32", "bfloat16"):
        rows = dense(out_features).to(getattr(torch, scheme))
        return pack_float(library, [rows], *rows.shape, rows.dtype)
    if scheme == "int8":
        return quantise(library, scheme, [dense(out_features)], out_features, IN_FEATURES)
    stored = random_matrix(scheme, out_features, IN_FEATURES, torch.Generator().manual_seed(1)).stored
    return pack_blocks(library, scheme, [stored.read()["blocks"]], out_features, IN_FEATURES)


def poisoned(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return a view with NaN in it and around it."""
    return torch.full((rows + 2, columns + 9), torch.nan, dtype=dtype)[1:-1, 3 : columns + 3]


def activations(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(rows, IN_FEATURES, generator=torch.Generator().manual_seed(rows))
    return poisoned(rows, IN_FEATURES, dtype).copy_(3 * x)


def in_two(library: Library, weight: FloatWeight | QuantisedWeight, x: Tensor, bias: Tensor | None) -> Tensor:
    gate_up = torch.empty(len(x), weight.out_features, dtype=x.dtype)
    out = torch.empty(len(x), weight.out_features // 2, dtype=x.dtype)
    weight.linear(library, x, bias, gate_up)
    silu_mul(library, gate_up, out)
    return out


@pytest.mark.parametrize("rows", [1, 3, 6, 16, 37])
@pytest.mark.parametrize("scheme", ["float32", "bfloat16", "int8", "q4_1", "q5_0"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_pass_has_the_bits_of_two(library: Library, scheme: str, rows: int, dtype: torch.dtype) -> None:
    weight, x = packed(library, scheme), activations(rows, dtype)
    for bias in (None, torch.randn(weight.out_features).to(dtype)):
        out = poisoned(rows, FEATURES, dtype)
        weight.linear_silu_mul(library, x, bias, out)
        assert torch.equal(out, in_two(library, weight, x, bias))
        assert out._base is not None and out._base.isnan().sum() == out._base.numel() - out.numel()


@pytest.mark.parametrize(("scheme", "tolerance"), [("float32", 1e-5), ("int8", 0.05)])
def test_one_pass_is_near_the_float64_formula(library: Library, scheme: str, tolerance: float) -> None:
    x, out = activations(33), torch.empty(33, FEATURES)
    packed(library, scheme).linear_silu_mul(library, x, None, out)
    gate, up = (x.double() @ dense(2 * FEATURES).double().T).chunk(2, dim=1)
    expected = gate * torch.sigmoid(gate) * up
    assert (out - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("scheme", ["float32", "int8"])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(library: Library, scheme: str) -> None:
    weight, x = packed(library, scheme), activations(40)
    alone, together = torch.empty(40, FEATURES), torch.empty(40, FEATURES)
    weight.linear_silu_mul(library, x, None, together)
    library.set_num_threads(1)
    for row in range(40):
        weight.linear_silu_mul(library, x[row : row + 1], None, alone[row : row + 1])
    assert torch.equal(alone, together)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(lambda library: (packed(library, "int8", 50),), id="halves that fill no panel"),
        pytest.param(lambda library: (packed(library, "int8", 64), packed(library, "q4_1", 64)), id="two formats"),
    ],
)
def test_what_cannot_be_one_pass_is_two(
    library: Library, parts: Callable[[Library], tuple[QuantisedWeight, ...]]
) -> None:
    weight, x = Weight(parts(library), torch.float32), activations(5)
    gate_up, out = torch.empty(5, weight.out_features), torch.empty(5, weight.out_features // 2)
    weight.linear_silu_mul(library, x, None, gate_up, out)
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(out.double(), gate * torch.sigmoid(gate) * up, rtol=1e-5, atol=1e-6)
