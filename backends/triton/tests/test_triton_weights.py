"""Quantised matrices, in Triton's interpreter: products against float64, rows against what gguf reads."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.prepared_weight import UNIT, weight_spec
from pageport.testing.conformance.stored_matrix import StoredMatrix, random_matrix, stored_matrix
from pageport_triton.op_configurations import OpConfiguration
from pageport_triton.quantised_matrix import QuantisedMatrix
from pageport_triton.weights import Weight, embed, linear, prepare_weight, weight_bytes

from .small_ops import INTERPRETER, SMALL

HOST = torch.device("cpu")


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def assert_product(weight: Weight, values: Tensor, dtype: str, configuration: OpConfiguration, rows: int = 3) -> None:
    """Multiply NaN-surrounded rows into NaN-surrounded rows and compare with the float64 product."""
    features = values.shape[1]
    x = torch.full((rows, features + 9), torch.nan, dtype=getattr(torch, dtype))[:, 4 : 4 + features]
    x.copy_(torch.randn(rows, features, generator=generator()))
    bias = torch.randn(len(values), generator=generator()).to(x)
    out = torch.full((rows, len(values) + 5), torch.nan, dtype=x.dtype)
    linear(weight, x, bias, out[:, 2:-3], configuration=configuration)
    expected = x.double() @ values.T + bias.double()
    length = (x.double().square() @ values.square().T).sqrt()
    # Each weight is rounded once to the dtype, sums are float32, and the result is rounded once.
    allowed = 3 * UNIT[dtype] * length + 2.0**-18 * length + 2 * UNIT[dtype] * expected.abs()
    assert ((out[:, 2:-3].double() - expected).abs() <= allowed).all()
    assert out[:, :2].isnan().all() and out[:, -3:].isnan().all()


@pytest.mark.parametrize(
    ("scheme", "dtype", "shape"),
    [
        ("q8_0", "float16", (21, 96)),
        ("q4_0", "bfloat16", (33, 96)),
        ("q4_1", "float32", (17, 64)),
    ],
)
def test_blocks_are_kept_and_multiplied_by_their_values(scheme: str, dtype: str, shape: tuple[int, int]) -> None:
    matrix = random_matrix(scheme, *shape, generator())
    weight = prepare_weight(weight_spec([matrix], dtype), [matrix.stored], HOST)
    assert_product(weight, matrix.values, dtype, SMALL)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] - 1])
    rows = embed(weight, ids, configuration=SMALL)
    assert torch.equal(rows, matrix.values[ids].to(getattr(torch, dtype)))
    (kept,) = weight.matrices
    assert isinstance(kept, QuantisedMatrix)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scheme", ["q8_0", "q4_0", "q4_1"])
def test_every_scheme_is_multiplied_in_every_dtype(scheme: str, dtype: str) -> None:
    for rows, columns in ((1, 32), (70, 288)):
        matrix = random_matrix(scheme, rows, columns, generator())
        weight = prepare_weight(weight_spec([matrix], dtype), [matrix.stored], HOST)
        for configuration in (SMALL, INTERPRETER):
            for count in (1, 17):
                assert_product(weight, matrix.values, dtype, configuration, count)


@pytest.mark.parametrize("shape", [(19, 40), pytest.param((7, 200), marks=pytest.mark.full)])
@pytest.mark.parametrize(("quantisation", "steps"), [("int8", 127), ("int4", 7)])
def test_on_load_quantisation_is_near_and_is_what_is_multiplied_by(
    quantisation: str, steps: int, shape: tuple[int, int]
) -> None:
    matrix = stored_matrix(torch.randn(*shape, generator=generator()))
    weight = prepare_weight(weight_spec([matrix], "float16", quantisation=quantisation), [matrix.stored], HOST)
    kept = embed(weight, torch.arange(shape[0]), configuration=INTERPRETER).double()
    step = matrix.values.abs().amax(dim=1, keepdim=True) / steps
    assert ((kept - matrix.values).abs() <= 0.6 * step).all()
    assert_product(weight, kept, "float16", SMALL)


def test_shares_of_the_inputs_add_up() -> None:
    matrix = random_matrix("q8_0", 5, 320, generator())
    weight = prepare_weight(weight_spec([matrix], "float32"), [matrix.stored], HOST)
    assert_product(weight, matrix.values, "float32", replace(SMALL, wanted_programs=2))


def test_fused_parts_keep_their_formats() -> None:
    parts = [random_matrix(scheme, rows, 64, generator()) for scheme, rows in (("q8_0", 6), ("q5_0", 4), ("bf16", 3))]
    weight = prepare_weight(weight_spec(parts, "float32"), [part.stored for part in parts], HOST)
    assert len(weight.matrices) == 2
    assert_product(weight, torch.cat([part.values for part in parts]), "float32", INTERPRETER)
    with pytest.raises(UnsupportedFeature, match="several formats"):
        embed(weight, torch.tensor([0]), configuration=INTERPRETER)


@pytest.mark.parametrize(("axis", "rank"), [(0, 1), (1, 0), (1, 1)])
def test_a_rank_keeps_its_share(axis: int, rank: int) -> None:
    matrix = random_matrix("q4_1", 8, 128, generator())
    spec = weight_spec([matrix], "float32", shard_axis=axis, shard_rank=rank, shard_world_size=2)
    weight = prepare_weight(spec, [matrix.stored], HOST)
    assert (weight.out_features, weight.in_features) == ((4, 128) if axis == 0 else (8, 64))
    found = embed(weight, torch.arange(weight.out_features), configuration=INTERPRETER)
    assert torch.equal(found.double(), matrix.values.chunk(2, dim=axis)[rank])


@pytest.mark.parametrize(("scheme", "bytes_per_weight"), [("q8_0", 34 / 32), ("q4_0", 18 / 32), ("q4_1", 20 / 32)])
def test_a_kept_matrix_takes_the_bytes_of_the_file(scheme: str, bytes_per_weight: float) -> None:
    matrix = random_matrix(scheme, 16, 256, generator())
    weight = prepare_weight(weight_spec([matrix], "float16"), [matrix.stored], HOST)
    assert weight_bytes(weight) == 16 * 256 * bytes_per_weight


def test_plain_and_dequantised_matrices_are_dense() -> None:
    plain, blocks = random_matrix("f16", 5, 64, generator()), random_matrix("q8_0", 5, 64, generator())
    for matrix, dequantise in ((plain, False), (blocks, True)):
        weight = prepare_weight(weight_spec([matrix], "float32", dequantise=dequantise), [matrix.stored], HOST)
        x = torch.randn(2, 64)
        torch.testing.assert_close(linear(weight, x, configuration=SMALL), x @ matrix.values.T.float())
        assert torch.equal(embed(weight, torch.tensor([3]), configuration=SMALL).double(), matrix.values[3:4])
        assert weight_bytes(weight) == 5 * 64 * 4


def _with_a_large_value() -> StoredMatrix:
    dense = torch.randn(4, 32)
    dense[1, 2] = 1e5
    return stored_matrix(dense)


@pytest.mark.parametrize(("quantisation", "dtype"), [("int4", "bfloat16"), ("int8", "float16"), ("int4", "float16")])
def test_a_value_beyond_float16_is_refused_where_it_does_not_fit(quantisation: str, dtype: str) -> None:
    matrix = _with_a_large_value()
    with pytest.raises(UnsupportedFeature, match="65504"):
        prepare_weight(weight_spec([matrix], dtype, quantisation=quantisation), [matrix.stored], HOST)
