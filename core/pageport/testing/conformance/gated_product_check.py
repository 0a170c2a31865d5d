"""Checks of ``linear_silu_mul`` against float64, with matrices whose halves fill whole vectors of a kernel or none."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pageport.backend.op_table import compile_ops
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.op_formulas import Draw, Inputs, gated
from pageport.testing.conformance.op_verdict import check_op

# (tokens, in_features, features of the gate)
SHAPES = ((0, 64, 32), (1, 64, 96), (3, 576, 192), (17, 33, 65), (130, 64, 64))


def gated_product_checks(context: Context) -> Iterator[Check]:
    """Yield the checks where the device declares an op of its own; what it inherits consists of ops with checks."""
    if "op:linear_silu_mul" not in context.capabilities.features:
        return
    for dtype in context.capabilities.compute_dtypes:
        for with_bias in (False, True):
            run = partial(check_gated_product, dtype=dtype, with_bias=with_bias)
            yield Check(Level.OPS, f"ops/linear_silu_mul{', bias' if with_bias else ''}/{dtype}", run)


def check_gated_product(context: Context, dtype: str, with_bias: bool) -> None:
    """A dense matrix of gate and up, by tokens none, one and many."""
    where, torch_dtype = context.device.torch_device, getattr(torch, dtype)
    draw = Draw(context.torch_generator(), torch_dtype)
    for tokens, columns, features in SHAPES:
        matrix = (draw.normal(2 * features, columns).double() / columns**0.5).to(torch_dtype)
        room = torch.full((tokens, 2 * features), torch.nan, dtype=torch_dtype, device=where)
        for out_mode in ("new", "out"):
            check_op(
                f"linear_silu_mul ({dtype}, {tokens} x {columns} by twice {features} x {columns}, out: {out_mode})",
                partial(_call, context, _prepared(context, matrix, dtype), room),
                {"x": draw.normal(tokens, columns)} | ({"bias": draw.normal(2 * features)} if with_bias else {}),
                partial(_gated, matrix.double()),
                where=where,
                dtype=torch_dtype,
                out_mode=out_mode,
                is_sum=True,
                suspects={"gate and up are swapped": partial(_swapped, matrix.double())},
            )


def _prepared(context: Context, matrix: Tensor, dtype: str) -> Any:
    rows, columns = matrix.shape
    stored = StoredTensor(scheme="f32", shape=(rows, columns), read=lambda: {"weight": matrix.float()})
    spec = WeightSpec(name="gate_up", out_features=rows, in_features=columns, compute_dtype=dtype, dequantise=True)
    return context.device.prepare_weight(spec, [stored])


def _call(context: Context, weight: Any, room: Tensor, given: Inputs, out: Tensor | None) -> Tensor:
    return compile_ops(context.device).linear_silu_mul(weight, given["x"], given.get("bias"), room, out)


def _product(matrix: Tensor, wide: Inputs) -> Tensor:
    return wide["x"] @ matrix.T + wide.get("bias", 0.0)


def _gated(matrix: Tensor, wide: Inputs) -> Tensor:
    return gated(_product(matrix, wide))


def _swapped(matrix: Tensor, wide: Inputs) -> Tensor:
    gate, up = _product(matrix, wide).chunk(2, dim=1)
    return gated(torch.cat((up, gate), dim=1))
