"""The oracle of 8-bit caches agrees with torch's conversions, which it does not use."""

import numpy as np
import pytest
import torch

from pageport.testing.conformance.kv_rounding import EIGHT_BITS, kept, kept_rotated, rotated, steps


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_are_those_torch_converts_to(dtype):
    target = getattr(torch, dtype)
    largest = torch.finfo(target).max
    values = torch.randn(4096) * 2.0 ** torch.randint(-20, 20, (4096,))
    expected = values.clamp(-largest, largest).to(target).double().numpy()
    assert np.array_equal(kept(values, dtype), expected)


def test_every_number_of_a_format_is_kept_as_it_is():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        numbers = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype)).float()
        numbers = numbers[numbers.isfinite()]
        assert np.array_equal(kept(numbers, dtype), numbers.double().numpy())


def test_a_scale_moves_the_range_of_floats():
    values = torch.tensor([100.0, -0.3])
    assert kept(values, "float8_e4m3fn", scale=0.125).tolist() == [448 * 0.125, -2.5 * 0.125]


def test_integers_are_127ths_of_a_rows_largest():
    values = torch.tensor([[127.0, -1.4, 0.6], [0.0, 0.0, 0.0]])
    assert kept(values, "int8").tolist() == [[127.0, -1.0, 1.0], [0.0, 0.0, 0.0]]


def test_features_are_rotated_by_the_largest_power_of_two_that_divides_them():
    assert rotated(np.array([[1.0, 10.0, 100.0, 1000.0]])).tolist() == [[1111.0, -909.0, -1089.0, 891.0]]
    assert rotated(np.array([1.0, 10.0, 2.0, 20.0, 3.0, 30.0])).tolist() == [11.0, -9.0, 22.0, -18.0, 33.0, -27.0]
    assert rotated(np.array([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("head_size", [1, 7, 48, 64])
def test_products_of_rotated_numbers_are_theirs_times_how_many_are_rotated_together(head_size):
    query, key = np.random.default_rng(head_size).standard_normal((2, 5, head_size))
    together = head_size & -head_size
    assert np.allclose(rotated(query) @ rotated(key).T, together * (query @ key.T))


def test_a_large_feature_takes_less_from_a_rotated_key():
    keys = torch.randn(100, 64) + 30 * torch.eye(64)[5]
    exact = keys.double().numpy()
    worst, worst_rotated = (np.abs(f(keys, "float8_e5m2", 0.5) - exact).max() for f in (kept, kept_rotated))
    assert worst_rotated < 0.7 * worst


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", *EIGHT_BITS])
def test_rounding_is_off_by_half_a_step_at_most(dtype):
    values = torch.randn(64, 16, dtype=torch.float64).float()
    off = np.abs(kept(values, dtype) - values.double().numpy()) / steps(values.double().numpy(), dtype)
    assert off.max() <= 0.5 + 1e-9
    # Numbers that are float32 already need no rounding; the others are anywhere in a step.
    assert dtype == "float32" or off.max() > 0.45
