"""The oracle of 8-bit caches agrees with torch's conversions, which it does not use."""

import numpy as np
import pytest
import torch

from pageport.testing.conformance.kv_rounding import EIGHT_BITS, kept, steps


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", *EIGHT_BITS])
def test_rounding_is_off_by_half_a_step_at_most(dtype):
    values = torch.randn(64, 16, dtype=torch.float64).float()
    off = np.abs(kept(values, dtype) - values.double().numpy()) / steps(values.double().numpy(), dtype)
    assert off.max() <= 0.5 + 1e-9
    # Numbers that are float32 already need no rounding; the others are anywhere in a step.
    assert dtype == "float32" or off.max() > 0.45
