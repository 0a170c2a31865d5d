"""What the native device makes of stored matrices: formats kept or changed, fused parts, shards, refusals."""

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import Tensor

from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES, StoredTensor, WeightSpec
from pageport.errors import CorruptWeights, UnsupportedFeature
from pageport.testing.conformance.stored_matrix import StoredMatrix, random_matrix, stored_matrix
from pageport_cpu.float_weight import FloatWeight
from pageport_cpu.library import Library
from pageport_cpu.quantised_weight import QuantisedWeight
from pageport_cpu.weight_memory import WeightMemory
from pageport_cpu.weights import WEIGHT_SCHEMES, Weight, prepare_weight

COLUMNS = 512


def spec_of(parts: Sequence[StoredMatrix], quantisation: Literal["int8", "int4"] | None = None) -> WeightSpec:
    rows = sum(part.stored.shape[0] for part in parts)
    return WeightSpec(
        name="layer.qkv", out_features=rows, in_features=COLUMNS, compute_dtype="float32", quantisation=quantisation
    )


def matrices(*schemes: str, rows: int = 40) -> list[StoredMatrix]:
    generator = torch.Generator().manual_seed(3)
    return [random_matrix(scheme, rows, COLUMNS, generator) for scheme in schemes]


def stored(parts: Sequence[StoredMatrix]) -> list[StoredTensor]:
    return [part.stored for part in parts]


def product(library: Library, weight: Weight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    buffer = torch.full((len(x), weight.out_features + 9), torch.nan)
    weight.linear(library, x, bias, buffer[:, 3:-6])
    assert buffer.isnan().sum() == 9 * len(x)
    return buffer[:, 3:-6]


def assert_near(out: Tensor, x: Tensor, values: Tensor, tolerance: float = 0.02) -> None:
    """Compare with an error that rounding to 8 bits may have, relative to the lengths of rows."""
    length = x.double().norm(dim=1, keepdim=True) * values.norm(dim=1)
    assert ((out.double() - x.double() @ values.T).abs() <= tolerance * length).all()


def all_rows(library: Library, weight: Weight) -> Tensor:
    out = torch.empty(weight.out_features, weight.in_features)
    weight.embed(library, torch.arange(weight.out_features), out)
    return out


@pytest.mark.parametrize("scheme", WEIGHT_SCHEMES)
def test_every_scheme_keeps_its_values(library: Library, scheme: str) -> None:
    parts = matrices(scheme)

    weight = prepare_weight(library, spec_of(parts), stored(parts))

    assert isinstance(weight.matrices[0], FloatWeight if scheme in PLAIN_SCHEMES else QuantisedWeight)
    assert torch.equal(all_rows(library, weight).double(), parts[0].values)


def test_fused_parts_of_one_scheme_become_one_matrix(library: Library) -> None:
    parts = matrices("q4_1", "q4_1", "q4_1")

    weight = prepare_weight(library, spec_of(parts), stored(parts))

    assert len(weight.matrices) == 1
    assert torch.equal(all_rows(library, weight).double(), torch.cat([part.values for part in parts]))


def test_fused_parts_of_several_schemes_write_their_own_columns(library: Library) -> None:
    parts = matrices("q4_k", "q4_k", "q6_k", "f32", rows=37)
    weight = prepare_weight(library, spec_of(parts), stored(parts))
    x, bias = torch.randn(7, COLUMNS), torch.randn(4 * 37)

    out = product(library, weight, x, bias)

    assert [matrix.out_features for matrix in weight.matrices] == [74, 37, 37]
    assert_near(out - bias, x, torch.cat([part.values for part in parts]))
    for row in range(7):
        assert torch.equal(product(library, weight, x[row : row + 1], bias), out[row : row + 1])


def test_an_embedding_in_several_formats_is_refused(library: Library) -> None:
    parts = matrices("q4_k", "q6_k")
    weight = prepare_weight(library, spec_of(parts), stored(parts))

    with pytest.raises(UnsupportedFeature, match="several formats"):
        weight.embed(library, torch.tensor([0]), torch.empty(1, COLUMNS))


@pytest.mark.parametrize("scheme", ["q4_0", "q6_k", "f32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dequantised_weights_are_kept_in_the_compute_dtype(library: Library, scheme: str, dtype: str) -> None:
    parts = matrices(scheme, scheme)
    spec = WeightSpec(name="w", out_features=80, in_features=COLUMNS, compute_dtype=dtype, dequantise=True)

    weight = prepare_weight(library, spec, stored(parts))

    expected = torch.cat([part.values for part in parts]).to(getattr(torch, dtype))
    assert [matrix.panels.dtype for matrix in weight.matrices] == [expected.dtype]
    assert torch.equal(all_rows(library, weight), expected.float())


@pytest.mark.parametrize(("quantisation", "most_bytes"), [("int8", 1.02), ("int4", 0.64)])
@pytest.mark.parametrize("scheme", ["f32", "bf16", "q6_k"])
def test_any_checkpoint_can_be_quantised_on_load(
    library: Library, scheme: str, quantisation: Literal["int8", "int4"], most_bytes: float
) -> None:
    parts = matrices(scheme, scheme)
    x = torch.randn(5, COLUMNS)

    weight = prepare_weight(library, spec_of(parts, quantisation), stored(parts))

    assert weight.num_bytes <= most_bytes * 80 * COLUMNS
    values = torch.cat([part.values for part in parts])
    assert_near(product(library, weight, x), x, values, 0.02 if quantisation == "int8" else 0.4)
    error = (all_rows(library, weight).double() - values).norm() / values.norm()
    assert error < (0.015 if quantisation == "int8" else 0.1)


@pytest.mark.parametrize("scheme", ["f16", *BLOCK_SCHEMES])
@pytest.mark.parametrize("axis", [0, 1])
def test_ranks_together_hold_the_matrix(library: Library, scheme: str, axis: int) -> None:
    parts = matrices(scheme, scheme)

    shares = []
    for rank in range(2):
        spec = WeightSpec(
            name="w",
            out_features=80,
            in_features=COLUMNS,
            compute_dtype="float32",
            shard_rank=rank,
            shard_world_size=2,
            shard_axis=axis,
        )
        shares.append(all_rows(library, prepare_weight(library, spec, stored(parts))))

    if axis == 0:  # each rank has its share of both parts
        shares = [torch.cat([share[:20] for share in shares]), torch.cat([share[20:] for share in shares])]
        assert torch.equal(torch.cat(shares).double(), torch.cat([part.values for part in parts]))
    else:
        assert torch.equal(torch.cat(shares, 1).double(), torch.cat([part.values for part in parts]))


def test_a_shard_that_cuts_through_blocks_is_refused(library: Library) -> None:
    parts = matrices("q4_k")
    spec = WeightSpec(
        name="w", out_features=40, in_features=COLUMNS, compute_dtype="float32", shard_world_size=4, shard_axis=1
    )

    with pytest.raises(UnsupportedFeature, match="cut through q4_k blocks"):
        prepare_weight(library, spec, stored(parts))


def test_a_transposed_view_of_a_file_is_taken(library: Library) -> None:
    part = stored_matrix(torch.randn(COLUMNS, 40).t())

    for quantisation in (None, "int8"):
        weight = prepare_weight(library, spec_of([part], quantisation), [part.stored])
        assert_near(all_rows(library, weight), torch.eye(40), part.values.T)


def test_parts_of_another_shape_are_refused(library: Library) -> None:
    parts = matrices("q8_0")
    spec = WeightSpec(name="layer.up", out_features=41, in_features=COLUMNS, compute_dtype="float32")

    with pytest.raises(CorruptWeights, match=r"layer\.up should be 41 x 512"):
        prepare_weight(library, spec, stored(parts))


def test_a_scheme_nobody_knows_is_refused(library: Library) -> None:
    part = StoredTensor(scheme="q2_k", shape=(4, COLUMNS), read=dict)
    spec = WeightSpec(name="w", out_features=4, in_features=COLUMNS, compute_dtype="float32")

    with pytest.raises(UnsupportedFeature, match="q2_k"):
        prepare_weight(library, spec, [part])


def test_matrices_share_the_memory_that_is_given(library: Library) -> None:
    memory = WeightMemory()
    parts = matrices("q4_1")

    weights = [prepare_weight(library, spec_of(parts), stored(parts), memory) for _ in range(2)]

    addresses = [weight.matrices[0].panels.data_ptr() for weight in weights]
    assert addresses[1] - addresses[0] == weights[0].num_bytes
