"""Products and rows of packed float weights against float64."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pageport.errors import UnsupportedFeature
from pageport_cpu.float_weight import FloatWeight, pack_float
from pageport_cpu.library import Library

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# (in_features, out_features): one value, odd tails of vectors and panels, one and several blocks of inputs.
SHAPES = ((1, 1), (1, 17), (3, 100), (17, 3), (64, 32), (100, 33), (256, 64), (257, 31), (577, 100), (1030, 49))
# Half a unit in the last place of a result, relative and, for the subnormals of float16, absolute.
RELATIVE = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
ABSOLUTE = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2**-25}

by_storage = pytest.mark.parametrize("storage", DTYPES, ids=str)
by_activation = pytest.mark.parametrize("activation", DTYPES, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000 * shape[0] + shape[-1])
    return torch.randn(shape, generator=generator).to(dtype)


def in_slabs(dense: Tensor, rows: int = 23) -> Iterator[Tensor]:
    return iter(dense.split(rows))


def packed(library: Library, dense: Tensor) -> FloatWeight:
    return pack_float(library, in_slabs(dense), *dense.shape, dense.dtype)


def apart(values: Tensor, gap: int = 5) -> Tensor:
    """Return the same rows with NaN around them."""
    buffer = torch.full((values.shape[0] + 1, values.shape[1] + gap), torch.nan, dtype=values.dtype)
    return buffer[: values.shape[0], 2 : 2 + values.shape[1]].copy_(values)


def linear(library: Library, weight: FloatWeight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    weight.linear(library, x, bias, out)
    return out


def assert_product(found: Tensor, x: Tensor, dense: Tensor, bias: Tensor | None) -> None:
    """Compare with float64, within the error bound of a sum in float32 (Higham, Accuracy and Stability, 3.1)."""
    added = torch.zeros(1).double() if bias is None else bias.double()
    expected = x.double() @ dense.double().T + added
    sizes = x.double().abs() @ dense.double().abs().T + added.abs()
    allowed = (x.shape[1] + 2) * 2**-24 * sizes * 1.001
    allowed += (expected.abs() + allowed) * RELATIVE[found.dtype] + ABSOLUTE[found.dtype]
    assert found.shape == expected.shape
    assert ((found.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@by_storage
@by_activation
def test_product_is_the_float64_one_within_rounding(
    library: Library, shape: tuple[int, int], storage: torch.dtype, activation: torch.dtype
) -> None:
    in_features, out_features = shape
    rows = 1 + 31 * (in_features + DTYPES.index(storage) + DTYPES.index(activation)) % 70
    dense = random(out_features, in_features, dtype=storage)
    x, bias = apart(random(rows, in_features, dtype=activation)), random(1, out_features, dtype=activation)[0]
    weight = packed(library, dense)
    assert_product(linear(library, weight, x), x, dense, None)
    assert_product(linear(library, weight, x, bias), x, dense, bias)


@pytest.mark.parametrize("rows", (1, 4, 7, 13, 15, 29, 70, 130))
def test_product_of_any_number_of_rows_is_right(library: Library, rows: int) -> None:
    dense, x = random(67, 300), random(rows, 300)
    assert_product(linear(library, packed(library, dense), x), x, dense, None)


@by_activation
def test_product_writes_nothing_but_its_columns(library: Library, activation: torch.dtype) -> None:
    dense, x = random(37, 50), random(19, 50, dtype=activation)
    wide = torch.full((20, 60), torch.nan, dtype=activation)
    packed(library, dense).linear(library, x, None, wide[:19, 11:48])
    assert_product(wide[:19, 11:48], x, dense, None)
    assert wide[19].isnan().all() and wide[:, :11].isnan().all() and wide[:, 48:].isnan().all()


@pytest.mark.parametrize("shape", ((577, 100), (64, 33)), ids=str)
@by_storage
def test_row_alone_equals_the_row_in_any_batch(library: Library, shape: tuple[int, int], storage: torch.dtype) -> None:
    weight = packed(library, random(shape[1], shape[0], dtype=storage))
    x, bias = random(200, shape[0]), random(1, shape[1])[0]
    alone = torch.cat([linear(library, weight, row[None], bias) for row in x])
    for rows in (*range(2, 71), 113, 200):
        first = (200 - rows) // 2
        assert torch.equal(linear(library, weight, x[first : first + rows], bias), alone[first : first + rows])


@pytest.mark.parametrize("rows", (1, 5, 64, 150))
@by_storage
def test_number_of_threads_changes_nothing(library: Library, rows: int, storage: torch.dtype) -> None:
    weight, x = packed(library, random(333, 400, dtype=storage)), random(rows, 400)
    together = linear(library, weight, x)
    library.set_num_threads(1)
    assert torch.equal(linear(library, weight, x), together)


@by_activation
def test_nan_in_a_row_stays_in_that_row(library: Library, activation: torch.dtype) -> None:
    dense, x = random(45, 290), random(33, 290, dtype=activation)
    x[17, 280] = torch.nan
    found = linear(library, packed(library, dense), x).isnan()
    assert found[17].all() and found.sum() == 45


@by_storage
def test_infinite_weight_reaches_its_own_output_only(library: Library, storage: torch.dtype) -> None:
    dense = random(45, 20, dtype=storage)
    dense[33, 4] = torch.inf
    found = linear(library, packed(library, dense), random(18, 20))
    assert found[:, 33].isinf().all() and found.isfinite().sum() == 18 * 44


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@by_storage
@by_activation
def test_embedding_gives_the_stored_values(
    library: Library, shape: tuple[int, int], storage: torch.dtype, activation: torch.dtype
) -> None:
    dense = random(shape[1], shape[0], dtype=storage)
    token_ids = torch.randint(shape[1], (41,))
    out = apart(torch.zeros(41, shape[0], dtype=activation))
    packed(library, dense).embed(library, token_ids, out)
    assert torch.equal(out, dense[token_ids].to(activation))


@pytest.mark.parametrize("given", DTYPES, ids=str)
@by_storage
def test_packing_rounds_to_the_nearest_stored_value(library: Library, given: torch.dtype, storage: torch.dtype) -> None:
    dense = random(50, 83, dtype=given)
    weight = pack_float(library, in_slabs(dense), 50, 83, storage)
    out = torch.empty(50, 83, dtype=storage)
    weight.embed(library, torch.arange(50), out)
    assert torch.equal(out, dense.to(storage))


@pytest.mark.parametrize("rows", (1, 5, 16, 31, 32, 40, 100))
def test_slabs_of_any_size_pack_alike(library: Library, rows: int) -> None:
    dense = random(100, 19)
    assert torch.equal(
        pack_float(library, in_slabs(dense, rows), 100, 19, torch.float32).panels, packed(library, dense).panels
    )


def test_columns_of_a_wider_matrix_are_packed(library: Library) -> None:
    stored, x = random(40, 90), random(3, 30)
    weight = pack_float(library, in_slabs(stored[:, 50:80]), 40, 30, torch.float32)
    assert_product(linear(library, weight, x), x, stored[:, 50:80], None)


@by_storage
def test_weight_keeps_the_size_of_what_was_stored(library: Library, storage: torch.dtype) -> None:
    weight = packed(library, random(64, 10, dtype=storage))
    assert weight.num_bytes == 64 * 10 * storage.itemsize


def test_values_too_large_for_float16_are_refused(library: Library) -> None:
    dense = random(9, 8)
    dense[8, 7] = 70000.0
    with pytest.raises(UnsupportedFeature, match="beyond float16's 65504"):
        pack_float(library, in_slabs(dense), 9, 8, torch.float16)


def test_replayed_product_reads_its_tensors_anew(library: Library) -> None:
    weight, x, out = packed(library, random(40, 30)), random(6, 30), torch.empty(6, 40)
    with library.record() as tape:
        weight.linear(library, x, None, out)
    x.copy_(random(6, 30, seed=1))
    tape.replay()
    assert torch.equal(out, linear(library, weight, x))
