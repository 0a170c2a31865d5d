"""Every op of one tensor in, one out, as a float64 formula, with inputs that tell its faults apart."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Formula = Callable[[Inputs], Tensor]

EPSILON = 1e-5
CAP = 30.0
FACTOR = 0.7


class Draw:
    """Random tensors of one dtype, on the host."""

    def __init__(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        self._generator = generator
        self._dtype = dtype

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self._dtype)

    def weight(self, features: int) -> Tensor:
        """Return factors of a norm, around 1."""
        return (1 + 0.3 * self.normal(features).double()).to(self._dtype)

    def norm_rows(self, *shape: int) -> Tensor:
        """Return rows of ordinary size, of squares beyond float16, of squares far below epsilon, and of zeros."""
        magnitudes = torch.tensor([1.0, 400.0, 1e-3, 0.0], dtype=torch.float64)
        factors = magnitudes[torch.arange(shape[0]) % 4].view(-1, *[1] * (len(shape) - 1))
        return (self.normal(*shape).double() * factors).to(self._dtype)

    def activations(self, tokens: int, features: int) -> Tensor:
        """Return values where activations bend, and some so large that a careless exponential overflows."""
        values = 3 * self.normal(tokens, features).double()
        values.flatten()[::11] *= 40
        return values.to(self._dtype)

    def gate_up(self, tokens: int, features: int) -> Tensor:
        """Return gates that bend, and ordinary numbers to multiply them by."""
        return torch.cat((self.activations(tokens, features), self.normal(tokens, features)), dim=1)

    def indices(self, count: int, limit: int) -> Tensor:
        return torch.randint(limit, (count,), generator=self._generator)


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """One op with fixed options; inputs are called as its parameters are."""

    op: str
    label: str  # the op and its options
    draw: Callable[[Draw, int, int], dict[str, Tensor]]  # from the numbers of tokens and features
    options: Mapping[str, Any] = field(default_factory=dict)
    formula: Formula
    # The input that `out` may be.
    alias: str | None = None
    # The input that is changed in place, and to what.
    updates: Mapping[str, Formula] = field(default_factory=dict)
    # May results be off by an absolute amount as large as the relative one (sums), or only by next to nothing?
    is_sum: bool = False
    # What the result would be with a likely fault.
    suspects: Mapping[str, Formula] = field(default_factory=dict)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = EPSILON) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def overflowing_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    mean = x.square().clamp_max(math.inf).where(x.square() < 65504, math.inf).mean(-1, keepdim=True)
    return x / (mean + EPSILON).sqrt() * weight


def layer_norm(inputs: Inputs, epsilon: float = EPSILON) -> Tensor:
    centred = inputs["x"] - inputs["x"].mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * inputs["weight"]
    return scaled + inputs["bias"] if "bias" in inputs else scaled


def gelu(x: Tensor, tanh: bool) -> Tensor:
    if tanh:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold both."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def gate(inputs: Inputs) -> Tensor:
    return inputs["gate_up"].chunk(2, dim=-1)[0]


def up(inputs: Inputs) -> Tensor:
    return inputs["gate_up"].chunk(2, dim=-1)[1]


def _layer_norm_spec(label: str, with_bias: bool) -> OpSpec:
    def draw(draw: Draw, tokens: int, features: int) -> dict[str, Tensor]:
        inputs = {"x": draw.norm_rows(tokens, features), "weight": draw.weight(features)}
        return inputs | ({"bias": draw.normal(features)} if with_bias else {})

    return OpSpec(
        op="layer_norm",
        label=label,
        draw=draw,
        options={"epsilon": EPSILON} | ({} if with_bias else {"bias": None}),
        formula=layer_norm,
        is_sum=True,
        suspects={"epsilon is left out": lambda i: layer_norm(i, 0.0)},
    )


def _gelu_specs(tanh: bool) -> tuple[OpSpec, OpSpec]:
    name = "tanh" if tanh else "exact"
    swapped = f"{'the exact function' if tanh else 'the tanh approximation'} is computed where the other is asked for"
    return (
        OpSpec(
            op="gelu",
            label=f"gelu, {name}",
            draw=lambda draw, tokens, features: {"x": draw.activations(tokens, features)},
            options={"tanh": tanh},
            formula=lambda i: gelu(i["x"], tanh),
            alias="x",
            suspects={swapped: lambda i: gelu(i["x"], not tanh)},
        ),
        OpSpec(
            op="gelu_mul",
            label=f"gelu_mul, {name}",
            draw=lambda draw, tokens, features: {"gate_up": draw.gate_up(tokens, features)},
            options={"tanh": tanh},
            formula=lambda i: gelu(gate(i), tanh) * up(i),
            suspects={
                swapped: lambda i: gelu(gate(i), not tanh) * up(i),
                "gate and up are swapped": lambda i: gelu(up(i), tanh) * gate(i),
            },
        ),
    )


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        op="rms_norm",
        label="rms_norm",
        draw=lambda draw, tokens, features: {"x": draw.norm_rows(tokens, features), "weight": draw.weight(features)},
        options={"epsilon": EPSILON},
        formula=lambda i: rms_norm(i["x"], i["weight"]),
        is_sum=True,
        suspects={
            "epsilon is left out": lambda i: rms_norm(i["x"], i["weight"], 0.0),
            "squares overflow: sum them in float32": lambda i: overflowing_rms_norm(i["x"], i["weight"]),
            "the weight is taken to be 1 + weight": lambda i: rms_norm(i["x"], 1 + i["weight"]),
        },
    ),
    OpSpec(
        op="add_rms_norm",
        label="add_rms_norm",
        draw=lambda draw, tokens, features: {
            "x": draw.norm_rows(tokens, features),
            "residual": draw.norm_rows(tokens, features),
            "weight": draw.weight(features),
        },
        options={"epsilon": EPSILON},
        formula=lambda i: rms_norm(i["x"] + i["residual"], i["weight"]),
        updates={"residual": lambda i: i["x"] + i["residual"]},
        is_sum=True,
        suspects={
            "epsilon is left out": lambda i: rms_norm(i["x"] + i["residual"], i["weight"], 0.0),
            "the residual is not added": lambda i: rms_norm(i["x"], i["weight"]),
            "squares overflow: sum them in float32": lambda i: overflowing_rms_norm(
                i["x"] + i["residual"], i["weight"]
            ),
        },
    ),
    _layer_norm_spec("layer_norm", with_bias=True),
    _layer_norm_spec("layer_norm, no bias", with_bias=False),
    OpSpec(
        op="add",
        label="add",
        draw=lambda draw, tokens, features: {"x": draw.normal(tokens, features), "y": draw.normal(tokens, features)},
        formula=lambda i: i["x"] + i["y"],
        alias="x",
    ),
    OpSpec(
        op="scale",
        label="scale",
        draw=lambda draw, tokens, features: {"x": draw.normal(tokens, features)},
        options={"factor": FACTOR},
        formula=lambda i: i["x"] * FACTOR,
        alias="x",
    ),
    OpSpec(
        op="silu_mul",
        label="silu_mul",
        draw=lambda draw, tokens, features: {"gate_up": draw.gate_up(tokens, features)},
        formula=lambda i: gated(i["gate_up"]),
        suspects={"gate and up are swapped": lambda i: silu(up(i)) * gate(i)},
    ),
    *_gelu_specs(tanh=True),
    *_gelu_specs(tanh=False),
    OpSpec(
        op="softcap",
        label="softcap",
        draw=lambda draw, tokens, features: {"x": 10 * draw.activations(tokens, features)},
        options={"cap": CAP},
        formula=lambda i: CAP * torch.tanh(i["x"] / CAP),
        alias="x",
        suspects={"x is not divided by the cap": lambda i: CAP * torch.tanh(i["x"])},
    ),
    OpSpec(
        op="gather_rows",
        label="gather_rows",
        draw=lambda draw, tokens, features: {
            "x": draw.normal(tokens + 3, features),
            "rows": draw.indices(tokens, tokens + 3),
        },
        formula=lambda i: i["x"][i["rows"].long()],
    ),
)
