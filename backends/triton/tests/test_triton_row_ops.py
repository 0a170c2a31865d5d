"""Norms, activations, picking rows and rotary embedding, in Triton's interpreter, against float64 formulas."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pageport.backend.reference import ops as reference_ops
from pageport.testing.conformance.op_formulas import OPS, Draw, OpSpec, rms_norm
from pageport.testing.conformance.op_verdict import check_op, check_values
from pageport.testing.conformance.rope_check import cos_sin, rotated
from pageport_triton import activations, gather_rows, norms, rope, rows

from .small_ops import INTERPRETER, SMALL

HOST = torch.device("cpu")
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(norms, name) for name in ("rms_norm", "add_rms_norm", "layer_norm")},
    **{name: getattr(activations, name) for name in ("add", "scale", "silu_mul", "gelu_mul", "gelu", "softcap")},
    "gather_rows": gather_rows.gather_rows,
}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def check(spec: OpSpec, dtype: torch.dtype, tokens: int, features: int, out_mode: str) -> None:
    inputs = spec.draw(Draw(torch.Generator().manual_seed(features), dtype), tokens, features)
    check_op(
        f"{spec.label} ({dtype}, {tokens} x {features}, out: {out_mode})",
        lambda given, out: FUNCTIONS[spec.op](**given, **spec.options, out=out, configuration=SMALL),
        inputs,
        spec.formula,
        where=HOST,
        dtype=dtype,
        out_mode=out_mode,
        updates=spec.updates,
        is_sum=spec.is_sum,
        suspects=spec.suspects,
    )


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST_BLOCK", 64)


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.label)
def test_op_is_its_formula_in_16_bits(spec: OpSpec) -> None:
    dtype = DTYPES[1 + OPS.index(spec) % 2]
    check(spec, dtype, 3, 129, spec.alias or "out")


@pytest.mark.full
@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.label)
def test_op_is_its_formula_at_every_size(spec: OpSpec, dtype: torch.dtype) -> None:
    for tokens, features in ((0, 64), (1, 1), (1, 200), (9, 7), (7, 64)):
        for out_mode in ("new", "out", *([spec.alias] if spec.alias else [])):
            check(spec, dtype, tokens, features, out_mode)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "silu_mul", "gather_rows"])
def test_rows_may_lie_apart_with_anything_between(name: str) -> None:
    wide = torch.full((5, 40), torch.nan)
    x = wide[:, 4:28]
    x.copy_(torch.randn(5, 24))
    extra: dict[str, Any] = {
        "rms_norm": (torch.randn(24), 1e-5),
        "layer_norm": (torch.randn(24), None, 1e-5),
        "silu_mul": (),
        "gather_rows": (torch.tensor([4, 0, 4]),),
    }[name]
    expected = getattr(reference_ops, name)(x.contiguous(), *extra)
    out = torch.full((len(expected), 40), torch.nan)[:, 7 : 7 + expected.shape[1]]
    found = FUNCTIONS[name](x, *extra, out, configuration=SMALL)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert wide[:, :4].isnan().all() and wide[:, 28:].isnan().all()


def test_heads_of_a_fused_projection_are_normed_one_by_one() -> None:
    fused = torch.randn(3, 7 * 20)
    heads = fused.view(3, 7, 20)[:, 1:5]
    weight = torch.randn(20)
    found = norms.rms_norm(heads, weight, 1e-5, configuration=SMALL)
    check_values("heads", found, rms_norm(heads.double(), weight.double()), torch.float32, is_sum=True)


def test_a_single_row_is_normed() -> None:
    x, weight = torch.randn(24), torch.randn(24)
    found = norms.rms_norm(x, weight, 1e-5, configuration=SMALL)
    check_values("row", found, rms_norm(x.double(), weight.double()), torch.float32, is_sum=True)


def test_a_row_too_long_for_registers_is_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, residual = torch.randn(2, 40), torch.randn(40), torch.randn(2, 40)
    monkeypatch.setattr(norms, "LONGEST_ROW", 32)
    added = residual.clone()
    found = norms.add_rms_norm(x, added, weight, 1e-5, configuration=SMALL)
    assert torch.equal(added, residual + x)
    assert torch.equal(found, reference_ops.rms_norm(added, weight, 1e-5))
    layers = norms.layer_norm(x, weight, None, 1e-5, configuration=SMALL)
    assert torch.equal(layers, reference_ops.layer_norm(x, weight, None, 1e-5))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "rotary_size"), [(torch.float32, 20), (torch.bfloat16, 12), (torch.float16, 6)])
def test_rope_turns_pairs_and_leaves_the_rest(interleaved: bool, dtype: torch.dtype, rotary_size: int) -> None:
    draw = Draw(torch.Generator().manual_seed(3), dtype)
    fused = draw.normal(5, 9 * 20).view(5, 9, 20)
    before, table, positions = fused.double(), cos_sin(50, rotary_size), draw.indices(5, 50)
    rope.rope(fused[:, :6], fused[:, 6:8], positions, table, interleaved, configuration=SMALL)
    expected = before.clone()
    expected[:, :8] = rotated(before[:, :8], positions, table, interleaved)
    check_values("rope", fused, expected, dtype, is_sum=True)


def test_rope_of_no_tokens_does_nothing() -> None:
    nothing = torch.zeros(0, 2, 8)
    rope.rope(nothing, nothing, torch.zeros(0, dtype=torch.int64), cos_sin(3, 8), False, configuration=INTERPRETER)
