"""Level 4: every op of the op table against its formula in float64, and whether ``explain`` tells the truth."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.op_table import compile_ops
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.explain_check import explain_checks
from pageport.testing.conformance.fetch_check import fetch_checks
from pageport.testing.conformance.gated_product_check import gated_product_checks
from pageport.testing.conformance.graph_check import graph_checks
from pageport.testing.conformance.op_formulas import EPSILON, OPS, Draw, Inputs, OpSpec, rms_norm
from pageport.testing.conformance.op_verdict import Guarded, check_op, check_values
from pageport.testing.conformance.rope_check import rope_checks
from pageport.testing.conformance.rope_write_check import rope_write_checks
from pageport.testing.conformance.sample_check import sample_checks

# (tokens, features): none, one, sizes that fill no vector, and many.
SHAPES = ((0, 64), (1, 1), (1, 576), (5, 7), (17, 129), (130, 64), (2049, 48))
# (tokens, in_features, out_features)
LINEAR_SHAPES = ((0, 64, 32), (1, 64, 96), (1, 7, 5), (3, 576, 192), (17, 33, 129), (130, 64, 64), (1025, 48, 80))


def checks(context: Context) -> Iterator[Check]:
    """Yield the checks that apply to what the device declares."""
    yield from graph_checks(context)
    yield from fetch_checks()
    yield from rope_write_checks(context)
    yield from gated_product_checks(context)
    for dtype in context.capabilities.compute_dtypes:
        for spec in OPS:
            yield _check(f"{spec.label}/{dtype}", partial(check_op_spec, spec=spec, dtype=dtype))
        yield _check(f"rms_norm, each head/{dtype}", partial(check_head_norm, dtype=dtype))
        for with_bias in (False, True):
            name = f"linear{', bias' if with_bias else ''}/{dtype}"
            yield _check(name, partial(check_linear, dtype=dtype, with_bias=with_bias))
        yield _check(f"embed/{dtype}", partial(check_embed, dtype=dtype))
        yield from rope_checks(dtype)
        yield from sample_checks(dtype)
    yield from explain_checks()


def check_op_spec(context: Context, spec: OpSpec, dtype: str) -> None:
    """Every shape, with a new result, into ``out``, and into an input where that is allowed."""
    function = getattr(compile_ops(context.device), spec.op)
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    for tokens, features in SHAPES:
        inputs = spec.draw(draw, tokens, features)
        for out_mode in ("new", "out", *([spec.alias] if spec.alias else [])):
            check_op(
                f"{spec.label} ({dtype}, {tokens} x {features}, {_described(out_mode)})",
                lambda given, out: function(**given, **spec.options, out=out),
                inputs,
                spec.formula,
                where=context.device.torch_device,
                dtype=getattr(torch, dtype),
                out_mode=out_mode,
                updates=spec.updates,
                is_sum=spec.is_sum,
                suspects=spec.suspects,
            )


def check_head_norm(context: Context, dtype: str) -> None:
    """Queries and keys are normed head by head, from views into a fused projection."""
    device = context.device
    function = compile_ops(device).rms_norm
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    for tokens, heads, head_size in ((0, 4, 64), (1, 4, 64), (7, 3, 80), (300, 2, 16)):
        fused = draw.norm_rows(tokens, (heads + 2) * head_size)
        weight = draw.weight(head_size)
        given = Guarded.copy_of(fused, device.torch_device)
        view = given.tensor[:, head_size : (heads + 1) * head_size].view(tokens, heads, head_size)
        heads_alone = fused.double()[:, head_size:-head_size].reshape(tokens, heads, head_size)
        expected = rms_norm(heads_alone, weight.double())
        suspects = {"epsilon is left out": rms_norm(heads_alone, weight.double(), 0.0)}
        out = Guarded.copy_of(torch.full(expected.shape, torch.nan, dtype=fused.dtype), device.torch_device)
        for target in (None, out.tensor):
            result = function(view, weight.to(device.torch_device), EPSILON, target)
            what = f"rms_norm of a strided view ({dtype}, {tokens} x {heads} x {head_size})"
            check_values(what, result, expected, fused.dtype, is_sum=True, suspects=suspects)
            assert torch.equal(given.tensor.cpu(), fused), f"{what}: the op changes its input."
        assert out.is_untouched(), f"{what}: the op writes outside out."


def check_linear(context: Context, dtype: str, with_bias: bool) -> None:
    """A dense matrix, by tokens one and many."""
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    for tokens, columns, rows in LINEAR_SHAPES:
        matrix = (draw.normal(rows, columns).double() / columns**0.5).to(getattr(torch, dtype))
        weight = prepare(context.device, matrix, dtype)
        inputs = {"x": draw.normal(tokens, columns)} | ({"bias": draw.normal(rows)} if with_bias else {})
        for out_mode in ("new", "out"):
            check_op(
                f"linear ({dtype}, {tokens} x {columns} by {rows} x {columns}, {_described(out_mode)})",
                partial(_linear, context.device, weight),
                inputs,
                partial(_product, matrix.double()),
                where=context.device.torch_device,
                dtype=getattr(torch, dtype),
                out_mode=out_mode,
                is_sum=True,
                suspects={"the bias is left out": partial(_product, matrix.double(), has_bias=False)},
            )


def check_embed(context: Context, dtype: str) -> None:
    """Rows of a matrix, repeated and in any order."""
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    for tokens, features in SHAPES:
        table = draw.normal(97, features)
        weight = prepare(context.device, table, dtype)
        token_ids = draw.indices(tokens, 97)
        token_ids[:2] = torch.tensor([96, 0])[:tokens]
        for out_mode in ("new", "out"):
            check_op(
                f"embed ({dtype}, {tokens} of 97 x {features}, {_described(out_mode)})",
                partial(_embed, context.device, weight),
                {"token_ids": token_ids},
                partial(_rows, table.double()),
                where=context.device.torch_device,
                dtype=getattr(torch, dtype),
                out_mode=out_mode,
            )


def _linear(device: Device, weight: Any, given: Inputs, out: Tensor | None) -> Tensor:
    return device.linear(weight, given["x"], given.get("bias"), out)


def _product(matrix: Tensor, wide: Inputs, has_bias: bool = True) -> Tensor:
    return wide["x"] @ matrix.T + (wide.get("bias", 0.0) if has_bias else 0.0)


def _embed(device: Device, weight: Any, given: Inputs, out: Tensor | None) -> Tensor:
    return device.embed(weight, given["token_ids"], out)


def _rows(table: Tensor, wide: Inputs) -> Tensor:
    return table[wide["token_ids"].long()]


def prepare(device: Device, matrix: Tensor, dtype: str) -> Any:
    """Hand a dense matrix to the device as a file would."""
    rows, columns = matrix.shape
    stored = StoredTensor(scheme="f32", shape=(rows, columns), read=lambda: {"weight": matrix.float()})
    spec = WeightSpec(name="conformance", out_features=rows, in_features=columns, compute_dtype=dtype, dequantise=True)
    return device.prepare_weight(spec, [stored])


def _check(name: str, run: Callable[[Context], None]) -> Check:
    return Check(Level.OPS, f"ops/{name}", run)


def _described(out_mode: str) -> str:
    return {"new": "without out", "out": "with out"}.get(out_mode, f"out is {out_mode}")
