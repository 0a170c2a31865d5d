"""Ops with one fault each."""

import functools
from dataclasses import replace

import torch
from torch.nn import functional

from pageport.backend import Backend, Capabilities
from pageport.backend.op_table import OPTIONAL_OPS
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


class Replacing(CpuDevice):
    """Declares each op that its class replaces."""

    @property
    def capabilities(self) -> Capabilities:
        replaced = [op for op in OPTIONAL_OPS if op in vars(type(self))]
        return replace(super().capabilities, features={f"op:{op}": 1 for op in replaced})


class NormWithoutEpsilon(Replacing):
    def rms_norm(self, x, weight, epsilon, out=None):
        return super().rms_norm(x, weight, 0.0, out)


class NormInHalfPrecision(Replacing):
    def rms_norm(self, x, weight, epsilon, out=None):
        result = x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight
        return result if out is None else out.copy_(result)


class NormOfUnchangedResidual(Replacing):
    def add_rms_norm(self, x, residual, weight, epsilon, out=None):
        return super().rms_norm(x + residual, weight, epsilon, out)


class RopeOfOtherPairs(Replacing):
    def rope(self, query, key, positions, cos_sin, interleaved):
        super().rope(query, key, positions, cos_sin, not interleaved)


class GeluOfTheOtherKind(Replacing):
    def gelu(self, x, tanh, out=None):
        return super().gelu(x, not tanh, out)


class GatedGeluOfTheOtherKind(Replacing):
    def gelu_mul(self, gate_up, tanh, out=None):
        return super().gelu_mul(gate_up, not tanh, out)


class SwapsGateAndUp(Replacing):
    def silu_mul(self, gate_up, out=None):
        up, gate = gate_up.chunk(2, dim=-1)
        return torch.mul(functional.silu(gate.float()), up, out=out).to(gate_up.dtype)


class SwapsGateAndUpOfProducts(Replacing):
    def linear_silu_mul(self, weight, x, bias, gate_up, out=None):
        self.linear(weight, x, bias, gate_up)
        return self.silu_mul(gate_up.roll(gate_up.shape[1] // 2, dims=1), out)


class CapsWithoutDividing(Replacing):
    def softcap(self, x, cap, out=None):
        result = (cap * x.float().tanh()).to(x.dtype)
        return result if out is None else out.copy_(result)


class IgnoresOut(Replacing):
    def scale(self, x, factor, out=None):
        return x * factor


class WritesBehindOut(Replacing):
    def add(self, x, y, out=None):
        result = super().add(x, y, out)
        if out is not None:
            # A kernel whose last vector is written whole.
            out.as_strided((out.numel() + 3,), (1,))[-3:] = 0
        return result


class ChangesItsInput(Replacing):
    def layer_norm(self, x, weight, bias, epsilon, out=None):
        result = super().layer_norm(x, weight, bias, epsilon, out)
        x.sub_(1)
        return result


class GathersInOrder(Replacing):
    def gather_rows(self, x, rows, out=None):
        return super().gather_rows(x, rows.sort().values, out)


class ForgetsBias(Replacing):
    def linear(self, weight, x, bias=None, out=None):
        return super().linear(weight, x, None, out)


class ReturnsFloat32(Replacing):
    def gelu(self, x, tanh, out=None):
        return super().gelu(x.float(), tanh) if out is None else super().gelu(x, tanh, out)


class PosesAsTheReference(Replacing):
    gelu = functools.wraps(CpuDevice.gelu)(lambda *arguments, **options: torch_gelu(*arguments[1:], **options))


class FetchesIntoOnePlace(Replacing):
    def fetch(self, tensors):
        self.latest = [tensor.cpu() for tensor in tensors]
        return lambda: self.latest


def torch_gelu(x, tanh, out=None):
    result = functional.gelu(x.float(), approximate="tanh" if tanh else "none").to(x.dtype)
    return result if out is None else out.copy_(result)


def backend_with(device: type[CpuDevice]) -> type[Backend]:
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


CORRECT = (("replacing nothing", backend_with(Replacing), Level.OPS),)
WRONG = tuple(
    (name, backend_with(device), Level.OPS, words)
    for name, device, words in (
        ("rms_norm without epsilon", NormWithoutEpsilon, "epsilon is left out"),
        ("rms_norm in half precision", NormInHalfPrecision, "squares overflow: sum them in float32"),
        ("residual left as it was", NormOfUnchangedResidual, "residual afterwards"),
        ("wrong rope pairing", RopeOfOtherPairs, "wrong pairing"),
        ("gelu tanh swapped", GeluOfTheOtherKind, "the exact function is computed where the other is asked for"),
        ("gated gelu tanh swapped", GatedGeluOfTheOtherKind, "the tanh approximation is computed where the other"),
        ("gate and up swapped", SwapsGateAndUp, "gate and up are swapped"),
        ("gate and up of a product swapped", SwapsGateAndUpOfProducts, "linear_silu_mul (float32, 1 x 64"),
        ("cap without dividing", CapsWithoutDividing, "x is not divided by the cap"),
        ("fetches into one place", FetchesIntoOnePlace, "are the copies waited for, and are they copies of their own?"),
        ("ignores out", IgnoresOut, "the result is not `out`"),
        ("writes behind out", WritesBehindOut, "the op writes outside out"),
        ("changes its input", ChangesItsInput, "the op changes its input x"),
        ("gathers in order", GathersInOrder, "gather_rows (float32, 5 x 7"),
        ("forgets the bias", ForgetsBias, "the bias is left out"),
        ("returns another dtype", ReturnsFloat32, "the result is torch.float32, not torch.bfloat16"),
        ("poses as the reference", PosesAsTheReference, "which was not called"),
    )
)
