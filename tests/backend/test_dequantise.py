"""GGML blocks decode to the bits that the gguf package computes."""

import gguf
import numpy as np
import pytest
import torch

from pageport.backend.reference.dequantise import block_format, dequantise
from pageport.backend.weights import BLOCK_SCHEMES
from pageport.errors import UnsupportedFeature

# Where each format keeps its half-precision scales (and minima), in bytes from a block's start.
SCALES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}


def random_blocks(scheme: str, rows: int, blocks_per_row: int) -> np.ndarray:
    """Draw every bit pattern except scales that are not finite."""
    generator = np.random.default_rng(7)
    size = block_format(scheme).num_bytes
    blocks = generator.integers(0, 256, (rows * blocks_per_row, size), dtype=np.uint8)
    for place in SCALES[scheme]:
        scale = generator.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scale[:, None].view(np.uint8)
    return blocks.reshape(rows, blocks_per_row * size)


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
def test_every_bit_equals_gguf(scheme):
    stored = random_blocks(scheme, rows=9, blocks_per_row=5)
    expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[scheme.upper()])
    actual = dequantise(scheme, torch.from_numpy(stored))
    assert actual.shape == (9, 5 * block_format(scheme).num_weights)
    assert actual.dtype == torch.float32
    assert np.array_equal(actual.numpy(), expected)


@pytest.mark.parametrize("scheme", BLOCK_SCHEMES)
def test_rows_and_columns_of_blocks_decode_alone(scheme):
    stored = torch.from_numpy(random_blocks(scheme, rows=4, blocks_per_row=4))
    weights, size = block_format(scheme).num_weights, block_format(scheme).num_bytes
    whole = dequantise(scheme, stored)
    part = dequantise(scheme, stored[1:3, size : 3 * size])
    assert torch.equal(part, whole[1:3, weights : 3 * weights])


def test_formats_are_exactly_the_announced_ones():
    assert [block_format(scheme).num_weights for scheme in BLOCK_SCHEMES] == [32, 32, 32, 32, 32, 256, 256, 256]
    assert [block_format(scheme).num_bytes for scheme in BLOCK_SCHEMES] == [18, 20, 22, 24, 34, 144, 176, 210]


def test_no_rows_give_no_weights():
    assert dequantise("q4_k", torch.empty(0, 288, dtype=torch.uint8)).shape == (0, 512)


def test_unknown_scheme_names_the_known_ones():
    with pytest.raises(UnsupportedFeature, match=r"'iq2_xs'.*q4_0.*q6_k"):
        dequantise("iq2_xs", torch.empty(1, 32, dtype=torch.uint8))


def test_row_that_is_cut_is_refused():
    with pytest.raises(UnsupportedFeature, match="35 bytes is not whole blocks of 34"):
        dequantise("q8_0", torch.empty(2, 35, dtype=torch.uint8))
