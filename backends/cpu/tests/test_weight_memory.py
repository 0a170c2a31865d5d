"""Where packed weights lie."""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from pageport_cpu.weight_memory import MAPPING_BYTES, WeightMemory

LARGE = MAPPING_BYTES // 4 + 1  # as float32, more than a mapping


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.uint8), ids=str)
def test_weights_are_zero_and_start_at_cache_lines(dtype: torch.dtype) -> None:
    memory = WeightMemory()
    for count in (1, 7, 64, 1001):
        weight = memory.zeros(count, dtype)
        assert weight.shape == (count,) and weight.dtype == dtype and not weight.any()
        assert weight.data_ptr() % 64 == 0


def test_weights_do_not_overlap() -> None:
    memory = WeightMemory()
    weights = [memory.zeros(count, torch.float32) for count in (5, 16, 17, LARGE, 3)]
    for number, weight in enumerate(weights):
        weight[:20] = number
        weight[-20:] = number
    assert all((weight[:5] == number).all() and weight[-1] == number for number, weight in enumerate(weights))


def test_small_weights_share_a_mapping() -> None:
    memory = WeightMemory()
    first, second = memory.zeros(10, torch.float32), memory.zeros(10, torch.float32)
    assert second.data_ptr() - first.data_ptr() == 64


def test_empty_weight_is_empty() -> None:
    assert WeightMemory().zeros(0, torch.float32).shape == (0,)


def test_memory_goes_with_its_last_weight() -> None:
    memory = WeightMemory()
    weight = memory.zeros(10, torch.float32)
    mapping = weakref.ref(memory._mapping)
    del memory
    gc.collect()
    assert mapping() is not None and not weight.any()
    del weight
    gc.collect()
    assert mapping() is None


def test_memory_is_of_the_kind_that_gets_large_pages() -> None:
    """What is shared with other processes gets none by asking."""
    weight = WeightMemory().zeros(LARGE, torch.float32)
    address = weight.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, permissions = line.split()[:2]
        first, last = (int(edge, 16) for edge in extent.split("-"))
        if first <= address < last:
            assert permissions == "rw-p"
            return
    pytest.fail("the mapping is not listed")
