"""Norms, rotary embedding and activations against formulas in float64."""

import math

import pytest
import torch

# One rounding to the result's dtype.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
DTYPES = list(TOLERANCE)


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual, expected, dtype):
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def gelu(x, tanh):
    if tanh:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_divides_by_the_root_mean_square(device, dtype):
    x, weight = random(3, 16, dtype=dtype), random(16, dtype=dtype, seed=1)
    wide = x.double()
    expected = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(device.rms_norm(x, weight, 1e-5), expected, dtype)
    assert_close(device.rms_norm(x, weight, 1e-5, out=x), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_each_head_works_in_place_on_a_view(device, dtype):
    """Query norms write into the fused projection (ARC-09)."""
    fused = random(3, 4 * 8 + 16, dtype=dtype)
    before = fused.double()
    heads = fused[:, :32].view(3, 4, 8)
    weight = random(8, dtype=dtype, seed=1)
    expected = before[:, :32].view(3, 4, 8)
    expected = expected / (expected.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    device.rms_norm(heads, weight, 1e-6, out=heads)
    assert_close(fused[:, :32], expected.view(3, 32), dtype)
    assert torch.equal(fused[:, 32:].double(), before[:, 32:])


def test_rms_norm_squares_in_float32(device):
    """256² is beyond float16."""
    x = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert torch.equal(device.rms_norm(x, torch.ones(4, dtype=torch.float16), 1e-5), torch.ones(1, 4).half())


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_leaves_the_sum_in_the_residual(device, dtype):
    x, residual, weight = (random(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate([(3, 8), (3, 8), (8,)]))
    total = x + residual
    wide = total.double()
    expected = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(device.add_rms_norm(x, residual, weight, 1e-5, out=x), expected, dtype)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_centres_and_scales(device, dtype, with_bias):
    x, weight = random(3, 16, dtype=dtype), random(16, dtype=dtype, seed=1)
    bias = random(16, dtype=dtype, seed=2) if with_bias else None
    wide = x.double() - x.double().mean(1, keepdim=True)
    expected = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    expected = expected + (bias.double() if with_bias else 0)
    assert_close(device.layer_norm(x, weight, bias, 1e-5), expected, dtype)
    assert_close(device.layer_norm(x, weight, bias, 1e-5, out=x), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_size", [8, 4])
def test_rope_turns_each_pair_by_its_angle_in_place(device, dtype, interleaved, rotary_size):
    """Strided views, full and partial rotary."""
    angles = random(50, rotary_size // 2, seed=3)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([0, 49, 7])
    fused = random(3, (4 + 2 + 2) * 8, dtype=dtype)
    before = fused.double().view(3, 8, 8)
    device.rope(fused[:, :32].view(3, 4, 8), fused[:, 32:48].view(3, 2, 8), positions, cos_sin, interleaved)
    expected = before.clone()
    for i in range(rotary_size // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + rotary_size // 2)
        turn = torch.polar(torch.ones(3, 1).double(), angles[positions, i].double()[:, None])
        turned = torch.complex(before[:, :6, a], before[:, :6, b]) * turn
        expected[:, :6, a], expected[:, :6, b] = turned.real, turned.imag
    assert_close(fused.view(3, 8, 8), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_out", [False, True])
def test_gated_activations_take_the_first_half_as_the_gate(device, dtype, with_out):
    gate_up = random(3, 16, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=1)
    out = torch.empty(3, 8, dtype=dtype) if with_out else None
    assert_close(device.silu_mul(gate_up, out), gate * torch.sigmoid(gate) * up, dtype)
    for tanh in (False, True):
        assert_close(device.gelu_mul(gate_up, tanh, out), gelu(gate, tanh) * up, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tanh", [False, True])
def test_gelu_may_write_over_its_input(device, dtype, tanh):
    x = random(3, 16, dtype=dtype)
    expected = gelu(x.double(), tanh)
    assert_close(device.gelu(x, tanh), expected, dtype)
    assert_close(device.gelu(x, tanh, out=x), expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap_bounds_and_keeps_small_values(device, dtype):
    x = random(3, 16, dtype=dtype) * 40
    expected = 30 * torch.tanh(x.double() / 30)
    # bfloat16 results near the cap are 0.06 apart.
    capped = device.softcap(x, 30.0)
    torch.testing.assert_close(capped.double(), expected, atol=1e-5, rtol=TOLERANCE[dtype])
    assert torch.equal(device.softcap(x, 30.0, out=x), capped)
    assert x.abs().max() <= 30


def test_add_scale_and_gather_write_where_they_are_told(device):
    x, y = random(3, 4), random(3, 4, seed=1)
    out = torch.empty(2, 4)
    assert torch.equal(device.gather_rows(x, torch.tensor([2, 0]), out), x[[2, 0]])
    assert torch.equal(device.gather_rows(x, torch.tensor([1])), x[1:2])
    total, product = x + y, (x + y) * 0.5
    assert device.add(x, y, out=x) is x
    assert torch.equal(x, total)
    assert device.scale(x, 0.5, out=x) is x
    assert torch.equal(x, product)


def test_ops_of_no_tokens_are_empty(device):
    x = torch.empty(0, 8)
    assert device.rms_norm(x, torch.ones(8), 1e-5).shape == (0, 8)
    assert device.silu_mul(x).shape == (0, 4)
    device.rope(torch.empty(0, 2, 8), torch.empty(0, 1, 8), torch.empty(0, dtype=torch.int64), torch.ones(4, 8), False)
