"""Products with packed integers, against float64 products of what gguf reads and of activations rounded as promised."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pageport.backend.weights import BLOCK_SCHEMES
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.stored_matrix import random_matrix
from pageport_cpu.library import Library
from pageport_cpu.quantised_weight import PANEL_FORMATS, QuantisedWeight, pack_blocks, quantise

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}
# Of the sum of magnitudes: what adding in float32 may lose.
SUM_TOLERANCE = 1e-6
# Block counts that are odd, and outputs that fill no panel.
OUT_FEATURES, IN_FEATURES = 75, 768


@dataclass
class Matrix:
    weight: QuantisedWeight
    values: Tensor  # float64


def packed(library: Library, scheme: str, out_features: int = OUT_FEATURES, in_features: int = IN_FEATURES) -> Matrix:
    matrix = random_matrix(scheme, out_features, in_features, torch.Generator().manual_seed(out_features))
    blocks = matrix.stored.read()["blocks"]
    # In two slabs, of which the first ends inside a panel.
    slabs = [blocks[: out_features // 3], blocks[out_features // 3 :]]
    return Matrix(pack_blocks(library, scheme, slabs, out_features, in_features), matrix.values)


def poisoned(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Return a view, with NaN around it, of ``rows`` x ``columns`` numbers that are yet to be written."""
    return torch.full((rows + 2, columns + 37), torch.nan, dtype=dtype)[1:-1, 5 : columns + 5]


def activations(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = poisoned(rows, columns, dtype)
    return x.copy_(torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator) * 10)


def rounded(x: Tensor, scheme: str) -> Tensor:
    """Return activations as a product takes them: multiples of 1/127 of the group's largest, ties to even."""
    group = 96 if scheme == "int8" else 32
    padded = torch.unflatten(torch.nn.functional.pad(x.float(), (0, -x.shape[1] % group)), 1, (-1, group))
    scale = padded.abs().amax(-1, keepdim=True) * torch.tensor(1 / 127)
    integers = torch.where(scale >= 2.0**-126, torch.round(padded * (1 / scale)), 0)
    result: Tensor = (integers.double() * scale.double()).flatten(1)[:, : x.shape[1]]
    return result


def product(library: Library, weight: QuantisedWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    out = poisoned(len(x), weight.out_features, x.dtype)
    weight.linear(library, x, bias, out)
    return out


def assert_close(out: Tensor, x: Tensor, values: Tensor, dtype: torch.dtype = torch.float32) -> None:
    expected = x @ values.T
    tolerance = SUM_TOLERANCE * (x.abs() @ values.abs().T) + ROUNDING[dtype] * expected.abs() + 1e-7
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= tolerance).all()


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 16, 29, 70])
def test_products_are_those_of_the_rounded_activations(library: Library, scheme: str, rows: int) -> None:
    matrix = packed(library, scheme)
    x = activations(rows, IN_FEATURES)

    assert_close(product(library, matrix.weight, x), rounded(x, scheme), matrix.values)


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
def test_products_are_near_those_of_the_activations_themselves(library: Library, scheme: str) -> None:
    matrix = packed(library, scheme)
    x = activations(40, IN_FEATURES)

    error = product(library, matrix.weight, x).double() - x.double() @ matrix.values.T

    # Rounding to 8 bits is off by a 254th of the largest of 32 numbers at most: 0.5 % of the length, on average.
    length = x.double().norm(dim=1, keepdim=True) * matrix.values.norm(dim=1)
    assert (error.abs() <= 0.02 * length).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", ["q4_1", "q6_k", "int8"])
def test_every_dtype_of_activations_and_a_bias_are_taken(library: Library, scheme: str, dtype: torch.dtype) -> None:
    matrix = quantised(library, "int8", 75, 768) if scheme == "int8" else packed(library, scheme)
    x = activations(9, IN_FEATURES, dtype)
    bias = torch.randn(OUT_FEATURES).to(dtype)

    out = product(library, matrix.weight, x, bias)

    expected = rounded(x, scheme)
    ones = torch.ones(9, 1, dtype=torch.float64)
    assert_close(out, torch.cat([expected, ones], 1), torch.cat([matrix.values, bias.double()[:, None]], 1), dtype)


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 32), (15, 64), (17, 32), (64, 96), (133, 320)])
def test_odd_numbers_of_outputs_and_groups_are_taken(library: Library, out_features: int, in_features: int) -> None:
    for scheme in ("q4_0", "q5_1", "q8_0"):
        matrix = packed(library, scheme, out_features, in_features)
        x = activations(11, in_features)

        assert_close(product(library, matrix.weight, x), rounded(x, scheme), matrix.values)


@pytest.mark.parametrize("scheme", [*BLOCK_SCHEMES, "int8"])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_on_more_threads(library: Library, scheme: str) -> None:
    weight = (quantised if scheme == "int8" else packed)(library, scheme, 200, 768).weight
    x = activations(70, 768)
    library.set_num_threads(1)
    alone = torch.cat([product(library, weight, x[row : row + 1]) for row in range(70)])

    for num_threads in (1, 2):
        library.set_num_threads(num_threads)
        for rows in (*range(1, 18), 33, 61, 70):
            assert torch.equal(product(library, weight, x[:rows]), alone[:rows]), (num_threads, rows)


def test_rows_beyond_one_chunk_of_the_cache_have_the_same_bits(library: Library) -> None:
    weight = packed(library, "q4_1", 80, 3072).weight
    x = activations(300, 3072)

    out = product(library, weight, x)

    for row in (0, 127, 299):
        assert torch.equal(out[row : row + 1], product(library, weight, x[row : row + 1]))


@pytest.mark.parametrize("scheme", [*BLOCK_SCHEMES, "int8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_spoil_their_own_row_only(library: Library, scheme: str, bad: float) -> None:
    weight = (quantised if scheme == "int8" else packed)(library, scheme, OUT_FEATURES, IN_FEATURES).weight
    x = activations(5, IN_FEATURES)
    clean = product(library, weight, x).clone()
    x[2, 300] = bad

    out = product(library, weight, x)

    assert out[2].isnan().all()
    assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("scheme", ["q4_0", "int8"])
@pytest.mark.parametrize("size", [0.0, 1e-42, 1e-36, 1e36])
def test_tiny_and_huge_activations_give_no_garbage(library: Library, scheme: str, size: float) -> None:
    matrix = quantised(library, "int8", 75, 768) if scheme == "int8" else packed(library, scheme)
    x = activations(3, IN_FEATURES).clamp(-1, 1) * size

    out = product(library, matrix.weight, x)

    expected = rounded(x, scheme) @ matrix.values.T
    assert torch.allclose(out.double(), expected, rtol=1e-3, atol=max(size * 1e-3, 1e-40))


def test_only_the_view_asked_for_is_written(library: Library) -> None:
    weight = packed(library, "q4_1").weight
    buffer = torch.full((9, OUT_FEATURES + 40), torch.nan)

    weight.linear(library, activations(7, IN_FEATURES), None, buffer[1:-1, 5 : OUT_FEATURES + 5])

    assert buffer[1:-1, 5 : OUT_FEATURES + 5].isfinite().all()
    assert buffer.isfinite().sum() == 7 * OUT_FEATURES


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
def test_embedding_returns_the_values_gguf_reads(library: Library, scheme: str) -> None:
    matrix = packed(library, scheme)
    token_ids = torch.tensor([74, 0, 24, 25, 74, 17])
    out = poisoned(6, IN_FEATURES, torch.float32)

    matrix.weight.embed(library, token_ids, out)

    assert torch.equal(out.double(), matrix.values[token_ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedded_rows_are_rounded_to_the_dtype_of_out(library: Library, dtype: torch.dtype) -> None:
    matrix = packed(library, "q8_0", 33, 96)
    out = torch.empty(33, 96, dtype=dtype)

    matrix.weight.embed(library, torch.arange(33), out)

    assert torch.equal(out, matrix.values.to(dtype))


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
def test_packed_blocks_take_hardly_more_memory_than_stored_ones(library: Library, scheme: str) -> None:
    matrix = random_matrix(scheme, 64, 512, torch.Generator())
    blocks = matrix.stored.read()["blocks"]

    assert pack_blocks(library, scheme, [blocks], 64, 512).num_bytes <= 1.03 * blocks.nbytes


def test_the_lowest_byte_of_q8_0_is_minus_128(library: Library) -> None:
    blocks = torch.full((16, 34), 0x80, dtype=torch.uint8)
    blocks[:, :2] = torch.tensor([1.0], dtype=torch.float16).view(torch.uint8)
    weight = pack_blocks(library, "q8_0", [blocks], 16, 32)

    out = product(library, weight, torch.tensor([[127.0, -127.0], [127.0, 127.0]]).repeat(1, 16))

    assert out.tolist() == [[0.0] * 16, [-128.0 * 127 * 32] * 16]


def quantised(library: Library, scheme: str, out_features: int, in_features: int) -> Matrix:
    """Return random numbers rounded on load, and what they are then."""
    values = torch.randn(out_features, in_features, generator=torch.Generator().manual_seed(in_features))
    weight = quantise(library, scheme, [values[:5], values[5:]], out_features, in_features)
    embedded = torch.empty(out_features, in_features)
    weight.embed(library, torch.arange(out_features), embedded)
    return Matrix(weight, embedded.double())


@pytest.mark.parametrize("scheme", ["int8", "q4_1"])
@pytest.mark.parametrize("in_features", [1, 31, 64, 75, 320])
def test_products_with_numbers_quantised_on_load_are_exact(library: Library, scheme: str, in_features: int) -> None:
    matrix = quantised(library, scheme, 37, in_features)
    x = activations(9, in_features)

    assert_close(product(library, matrix.weight, x), rounded(x, scheme), matrix.values)


def test_int8_rounds_a_row_to_multiples_of_a_127th_of_its_largest(library: Library) -> None:
    values = torch.randn(37, 75)
    weight = quantise(library, "int8", [values], 37, 75)
    out = torch.empty(37, 75)

    weight.embed(library, torch.arange(37), out)

    assert ((out - values).abs() <= values.abs().amax(1, keepdim=True) / 253).all()


def test_int4_loses_less_than_rounding_between_minimum_and_maximum(library: Library) -> None:
    values = torch.randn(64, 320)
    groups = torch.unflatten(values, 1, (-1, 32))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain_error = (torch.round((groups - low) / step) * step + low - groups).square().sum()
    out = torch.empty(64, 320)

    quantise(library, "q4_1", [values], 64, 320).embed(library, torch.arange(64), out)

    assert (out - values).square().sum() <= 0.9 * plain_error


@pytest.mark.parametrize("values", [torch.zeros(3, 64), torch.full((3, 64), -2.5), torch.arange(64.0).repeat(3, 1) % 2])
def test_int4_keeps_what_it_can_express(library: Library, values: Tensor) -> None:
    out = torch.empty(3, 64)

    quantise(library, "q4_1", [values], 3, 64).embed(library, torch.arange(3), out)

    assert torch.allclose(out, values, atol=1e-3)


def test_weights_too_large_for_int4_are_refused(library: Library) -> None:
    with pytest.raises(UnsupportedFeature, match="65504"):
        quantise(library, "q4_1", [torch.full((2, 32), 1e5)], 2, 32)


@pytest.mark.parametrize("scheme", ["int8", "q4_1"])
def test_a_weight_that_is_not_a_number_shows_in_its_own_output(library: Library, scheme: str) -> None:
    values = torch.randn(20, 64)
    values[7, 40] = torch.nan

    out = product(library, quantise(library, scheme, [values], 20, 64), activations(3, 64))

    assert out[:, 7].isnan().all()
    assert out[:, torch.arange(20) != 7].isfinite().all()


def test_every_scheme_of_blocks_has_a_format() -> None:
    assert set(PANEL_FORMATS) == {*BLOCK_SCHEMES, "int8"}
