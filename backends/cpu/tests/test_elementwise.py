"""Norms, rotary embedding, activations and row operations against float64 formulas."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from pageport_cpu.activations import gelu, gelu_mul, silu_mul
from pageport_cpu.library import Library
from pageport_cpu.norms import layer_norm, rms_norm
from pageport_cpu.rope import rope
from pageport_cpu.row_ops import add, gather_rows, scale, softcap

Kernel = Callable[[Library, Tensor, Tensor], None]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 200)
EPSILON, CAP, FACTOR = 1e-5, 30.0, 0.7
# Half a unit in the last place of each dtype, and a few of float32's for the arithmetic.
RELATIVE = {torch.float32: 2e-6, torch.bfloat16: 2**-8 + 2e-6, torch.float16: 2**-11 + 2e-6}
SMALLEST = {torch.float32: 1e-36, torch.bfloat16: 1e-36, torch.float16: 2**-24}
# Exponentials of large arguments carry those' rounding; where that exceeds the relative error, values are tiny.
TAIL = 1e-11
WEIGHT = torch.linspace(0.5, 1.5, 200)
BIAS = torch.linspace(-1, 1, 200)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, size: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * shape[0] + shape[-1])
    return (size * torch.randn(shape, generator=generator)).to(dtype)


def apart(values: Tensor, gap: int = 5) -> Tensor:
    """Return the same rows with NaN between them."""
    buffer = torch.full((values.shape[0] + 1, values.shape[1] + gap), torch.nan, dtype=values.dtype)
    view = buffer[: values.shape[0], 2 : 2 + values.shape[1]]
    return view.copy_(values)


def assert_close(found: Tensor, expected: Tensor, absolute: float = 0.0) -> None:
    dtype = found.dtype
    torch.testing.assert_close(
        found.double(), expected, rtol=RELATIVE[dtype], atol=SMALLEST[dtype] + absolute, equal_nan=True
    )


def oracle_gelu(x: Tensor, tanh: bool) -> Tensor:
    if tanh:
        # 1 + tanh(u) cancels in float64 too where u is very negative.
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def oracle_layer_norm(x: Tensor, bias: Tensor | float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return centred / deviation * WEIGHT[: x.shape[1]].double() + bias


def _rms_norm(library: Library, x: Tensor, out: Tensor) -> None:
    rms_norm(library, x, None, WEIGHT[: x.shape[1]], EPSILON, out)


def _layer_norm(library: Library, x: Tensor, out: Tensor) -> None:
    layer_norm(library, x, WEIGHT[: x.shape[1]], BIAS[: x.shape[1]], EPSILON, out)


# From rows to rows as wide; the last number is the absolute error that is allowed.
ROW_OPS: dict[str, tuple[Kernel, Callable[[Tensor], Tensor], float]] = {
    "rms_norm": (
        _rms_norm,
        lambda x: x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt() * WEIGHT[: x.shape[1]],
        0.0,
    ),
    "layer_norm": (_layer_norm, lambda x: oracle_layer_norm(x, BIAS[: x.shape[1]].double()), 1e-6),
    "scale": (lambda library, x, out: scale(library, x, FACTOR, out), lambda x: x * FACTOR, 0.0),
    "softcap": (lambda library, x, out: softcap(library, x, CAP, out), lambda x: CAP * (x / CAP).tanh(), 0.0),
    "gelu": (lambda library, x, out: gelu(library, x, False, out), partial(oracle_gelu, tanh=False), TAIL),
    "gelu_tanh": (lambda library, x, out: gelu(library, x, True, out), partial(oracle_gelu, tanh=True), TAIL),
}
GATED_OPS: dict[str, tuple[Kernel, Callable[[Tensor], Tensor]]] = {
    "silu_mul": (silu_mul, lambda x: x * torch.sigmoid(x)),
    "gelu_mul": (lambda library, x, out: gelu_mul(library, x, False, out), partial(oracle_gelu, tanh=False)),
    "gelu_tanh_mul": (lambda library, x, out: gelu_mul(library, x, True, out), partial(oracle_gelu, tanh=True)),
}
ALL_OPS: dict[str, Kernel] = {name: op[0] for name, op in (ROW_OPS | GATED_OPS).items()}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
each_row_op = pytest.mark.parametrize("op", ROW_OPS)
each_op = pytest.mark.parametrize("op", ALL_OPS)


def result(op: str, library: Library, x: Tensor) -> Tensor:
    """Return what the op makes of ``x``; every other column of it for gated ops, which take two for one."""
    out = x.new_full((x.shape[0], x.shape[1] // 2 if op in GATED_OPS else x.shape[1]), torch.nan)
    ALL_OPS[op](library, x, out)
    return out


@each_dtype
@each_row_op
@pytest.mark.parametrize("size", [1.0, 6.0])
def test_row_op_is_its_formula_at_every_width(library: Library, op: str, dtype: torch.dtype, size: float) -> None:
    kernel, formula, absolute = ROW_OPS[op]
    for width in WIDTHS:
        x = apart(random(4, width, dtype=dtype, size=size))
        out = apart(torch.full_like(x, torch.nan))
        kernel(library, x, out)
        assert_close(out, formula(x.double()), absolute)


@each_dtype
@each_row_op
def test_row_op_in_place_gives_the_same(library: Library, op: str, dtype: torch.dtype) -> None:
    x = random(3, 77, dtype=dtype)
    expected = result(op, library, x)
    ALL_OPS[op](library, x, x)
    assert torch.equal(x, expected)


@each_dtype
@pytest.mark.parametrize("op", GATED_OPS)
def test_gated_activation_is_its_formula_at_every_width(library: Library, op: str, dtype: torch.dtype) -> None:
    kernel, formula = GATED_OPS[op]
    for width in WIDTHS:
        gate_up = apart(random(4, 2 * width, dtype=dtype, size=4.0))
        out = apart(torch.full((4, width), torch.nan, dtype=dtype))
        kernel(library, gate_up, out)
        gate, up = gate_up.double().chunk(2, dim=-1)
        assert_close(out, formula(gate) * up, TAIL)


@each_dtype
@pytest.mark.parametrize("op", ["add", *ALL_OPS])
def test_op_writes_nothing_but_its_rows(library: Library, op: str, dtype: torch.dtype) -> None:
    x = random(3, 38, dtype=dtype)
    buffer = torch.full((3, 50), 7.0, dtype=dtype)
    width = 19 if op in GATED_OPS else 38
    out = buffer[:, 5 : 5 + width]
    add(library, x, x, out) if op == "add" else ALL_OPS[op](library, x, out)
    assert not (out == 7).all()
    assert (buffer[:, :5] == 7).all() and (buffer[:, 5 + width :] == 7).all()


@each_dtype
def test_added_residual_is_rounded_before_it_is_normed(library: Library, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        x, residual = apart(random(5, width, dtype=dtype)), apart(random(5, width, dtype=dtype, seed=1))
        summed = x + residual
        out = torch.empty_like(summed)
        rms_norm(library, x, residual, WEIGHT[:width], EPSILON, out)
        assert torch.equal(residual, summed)
        assert torch.equal(out, result("rms_norm", library, summed))


def test_heads_of_a_view_are_normed_one_by_one(library: Library) -> None:
    fused = random(6, 5 * 24)
    heads = fused[:, 24:96].view(6, 3, 24)
    out = torch.empty(6, 3, 24)
    rms_norm(library, heads, None, WEIGHT[:24], EPSILON, out)
    assert torch.equal(out.view(18, 24), result("rms_norm", library, heads.reshape(18, 24)))


@each_dtype
def test_norm_weights_may_have_the_dtype_of_the_activations(library: Library, dtype: torch.dtype) -> None:
    x, weight, bias = random(3, 70, dtype=dtype), WEIGHT[:70].to(dtype), BIAS[:70].to(dtype)
    found, expected = torch.empty(2, 3, 70, dtype=dtype), torch.empty(2, 3, 70, dtype=dtype)
    rms_norm(library, x, None, weight, EPSILON, found[0])
    rms_norm(library, x, None, weight.float(), EPSILON, expected[0])
    layer_norm(library, x, weight, bias, EPSILON, found[1])
    layer_norm(library, x, weight.float(), bias.float(), EPSILON, expected[1])
    assert torch.equal(found, expected)


def test_layer_norm_without_bias_adds_nothing(library: Library) -> None:
    x = random(4, 61)
    out = torch.empty_like(x)
    layer_norm(library, x, WEIGHT[:61], None, EPSILON, out)
    assert_close(out, oracle_layer_norm(x.double(), 0.0), 1e-6)


def test_layer_norm_of_rows_far_from_zero_keeps_their_differences(library: Library) -> None:
    x = 1000 + random(4, 200)
    assert_close(result("layer_norm", library, x), oracle_layer_norm(x.double(), BIAS.double()), 1e-3)


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_rms_norm_holds_at_extreme_magnitudes(library: Library, size: float) -> None:
    x = random(4, 100, size=size)
    assert_close(result("rms_norm", library, x), ROW_OPS["rms_norm"][1](x.double()))


@each_dtype
def test_add_is_the_rounded_sum_also_in_place(library: Library, dtype: torch.dtype) -> None:
    for width in WIDTHS:
        x, y = apart(random(4, width, dtype=dtype)), apart(random(4, width, dtype=dtype, seed=9), gap=11)
        expected = x + y
        out = torch.empty_like(expected)
        add(library, x, y, out)
        add(library, x, y, x)
        assert torch.equal(out, expected)
        assert torch.equal(x, expected)


@each_dtype
def test_gather_rows_copies_bits(library: Library, dtype: torch.dtype) -> None:
    x = apart(random(9, 33, dtype=dtype))
    x[3, 4] = torch.nan
    rows = torch.tensor([8, 3, 3, 0, 5])
    out = apart(torch.zeros(5, 33, dtype=dtype))
    gather_rows(library, x, rows, out)
    torch.testing.assert_close(out, x[rows], rtol=0, atol=0, equal_nan=True)


def rotated(heads: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """Turn pairs of features as complex numbers, in float64."""
    half = table.shape[1] // 2
    cosines, sines = table.double()[positions].unsqueeze(1).chunk(2, dim=-1)
    turned = heads.double().clone()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b = heads.double()[..., first], heads.double()[..., second]
    turned[..., first], turned[..., second] = a * cosines - b * sines, b * cosines + a * sines
    return turned


def rotary_table(rotary_size: int, num_positions: int = 300) -> Tensor:
    angles = torch.arange(num_positions)[:, None] * 100.0 ** -torch.linspace(0, 1, rotary_size // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


@each_dtype
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_size", "rotary_size"), [(64, 64), (80, 20), (16, 4), (6, 2), (34, 34)])
def test_rope_turns_pairs_and_leaves_the_rest(
    library: Library, dtype: torch.dtype, interleaved: bool, head_size: int, rotary_size: int
) -> None:
    fused = random(7, 8 * head_size, dtype=dtype)
    before = fused.clone().view(7, 8, head_size)
    heads = fused.view(7, 8, head_size)
    positions, table = torch.tensor([0, 299, 5, 5, 17, 1, 200]), rotary_table(rotary_size)
    rope(library, heads[:, :5], heads[:, 5:7], positions, table, interleaved)
    assert_close(heads[:, :7], rotated(before[:, :7], positions, table, interleaved), 1e-6)
    assert torch.equal(heads[:, 7], before[:, 7])
    assert torch.equal(heads[..., rotary_size:], before[..., rotary_size:])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_bitwise_the_same_alone_and_among_others(library: Library, interleaved: bool) -> None:
    query, key, positions, table = (
        random(70, 6, 48),
        random(70, 2, 48, seed=1),
        torch.randperm(300)[:70],
        rotary_table(40),
    )
    alone = [(query[i : i + 1].clone(), key[i : i + 1].clone(), positions[i : i + 1]) for i in range(70)]
    rope(library, query, key, positions, table, interleaved)
    library.set_num_threads(1)
    for one_query, one_key, position in alone:
        rope(library, one_query, one_key, position, table, interleaved)
    assert torch.equal(query, torch.cat([one[0] for one in alone]))
    assert torch.equal(key, torch.cat([one[1] for one in alone]))


@each_dtype
@each_op
def test_row_is_bitwise_the_same_alone_and_among_others(library: Library, op: str, dtype: torch.dtype) -> None:
    x = random(70, 200, dtype=dtype, size=3.0).repeat(3, 1)
    together = result(op, library, x)
    library.set_num_threads(1)
    assert torch.equal(together, result(op, library, x))
    alone = [result(op, library, x[row : row + 1]) for row in range(70)]
    assert torch.equal(together, torch.cat(alone).repeat(3, 1))


@each_dtype
@each_op
def test_nan_stays_in_its_row(library: Library, op: str, dtype: torch.dtype) -> None:
    x = random(5, 34, dtype=dtype)
    clean = result(op, library, x)
    x[2, 3] = torch.nan
    found = result(op, library, x)
    assert found[2, 3].isnan()
    assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("op", ["scale", "softcap", "gelu", "gelu_tanh"])
def test_nan_stays_in_its_element(library: Library, op: str) -> None:
    x = torch.tensor([[1.0, torch.nan, -2.0]])
    assert result(op, library, x).isnan().tolist() == [[False, True, False]]


def test_extreme_inputs_have_the_limits_of_the_functions(library: Library) -> None:
    x = torch.tensor([[-1e30, -1e5, -200.0, 0.0, 200.0, 1e5, 1e30]])
    assert result("softcap", library, x)[0, [0, 6]].tolist() == [-CAP, CAP]
    for op in ("gelu", "gelu_tanh"):
        assert result(op, library, x).tolist() == [[0.0, 0.0, 0.0, 0.0, 200.0, *x[0, 5:].tolist()]]
    silu = result("silu_mul", library, torch.cat((x, torch.ones_like(x)), dim=1))
    assert silu.tolist() == [[0.0, 0.0, 0.0, 0.0, 200.0, *x[0, 5:].tolist()]]


def test_infinity_divided_by_the_cap_is_the_cap(library: Library) -> None:
    x = torch.tensor([[math.inf, -math.inf]])
    assert result("softcap", library, x).tolist() == [[CAP, -CAP]]


def units_off(found: Tensor, expected: Tensor) -> float:
    """Return the largest error in units in the last place of float32."""
    rounded = expected.float().abs()
    unit = (torch.nextafter(rounded, torch.tensor(math.inf)) - rounded).double()
    return float(((found.double() - expected).abs() / unit).max())


def all_magnitudes(largest: float) -> Tensor:
    """Return float32 of either sign from the smallest normal number to ``largest``, dense in exponent."""
    return (torch.linspace(math.log(1.2e-38), math.log(largest), 40_000).exp() * torch.tensor([1, -1]).repeat(20_000))[
        None
    ]


def test_tanh_is_within_two_units_everywhere(library: Library) -> None:
    x = all_magnitudes(1e30)
    out = torch.empty_like(x)
    softcap(library, x, 1.0, out)
    assert units_off(out, x.double().tanh()) < 2


def test_sigmoid_is_within_four_units_where_it_is_normal(library: Library) -> None:
    x = all_magnitudes(87.0)
    gate_up = torch.cat((x, 1 / x), dim=1)
    # silu(x) / x, of which the reciprocal and two products are off by half a unit each.
    expected = x.double() * torch.sigmoid(x.double()) * gate_up[:, x.shape[1] :].double()
    assert units_off(result("silu_mul", library, gate_up), expected) < 4


def test_normal_distribution_function_is_accurate_also_where_it_is_tiny(library: Library) -> None:
    x = torch.linspace(-12.9, 12.9, 60_001)[None]
    expected = oracle_gelu(x.double(), tanh=False)
    # Without a fused product what squaring rounds away is lost: 64 units at the far end.
    limit = 96 if library.instruction_set == "portable" else 24
    assert units_off(result("gelu", library, x), expected) < limit
    inner = x.abs() < 2
    assert units_off(result("gelu", library, x)[inner], expected[inner]) < 8


def test_many_rows_are_shared_by_threads(library: Library) -> None:
    x = random(300, 200)
    assert_close(result("scale", library, x), x.double() * FACTOR)
    assert result("scale", library, x[:0]).shape == (0, 200)
