"""Attention of decodes against float64, in torch and in the kernel, which runs on NKI's documented semantics."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pageport.backend.kv import AttentionParams, KVSpec
from pageport_neuron.attention import decode_attention, nki_decode_attention, serves

from . import fake_nki

BLOCK = 16


class Case(NamedTuple):
    query: Tensor
    keys: Tensor
    values: Tensor
    table: Tensor
    lengths: Tensor


def random_case(seed: int, dtype: torch.dtype = torch.float32, num_blocks: int = 9, size: int = 24) -> Case:
    """Four requests, one of them padding; whatever nobody sees is NaN, the null block too."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([1, 37, BLOCK * 3, 0], dtype=torch.int32)
    table = torch.full((4, 5), -1, dtype=torch.int32)
    free = torch.randperm(num_blocks, generator=generator).int()
    keys = torch.full((num_blocks + 1, 2, BLOCK, size), torch.nan, dtype=dtype)
    values = keys[..., : size - 8].clone()
    for request, length in enumerate(lengths.tolist()):
        for index in range(-(-length // BLOCK)):
            block, free = free[0], free[1:]
            table[request, index] = block
            filled = min(BLOCK, length - index * BLOCK)
            for stored in (keys, values):
                stored[block, :, :filled] = torch.randn(2, filled, stored.shape[-1], generator=generator).to(dtype)
    query = torch.randn(4, 6, size, generator=generator).to(dtype)
    return Case(query, keys, values, table, lengths)


def oracle(case: Case, scale: float) -> Tensor:
    """Attend in float64, a request at a time; leave padding out."""
    out = []
    for query, table, length in zip(case.query, case.table, case.lengths.tolist(), strict=True):
        if not length:
            continue
        blocks = table[table >= 0].long()
        keys, values = (
            stored[blocks].transpose(0, 1).flatten(1, 2)[:, :length].double() for stored in (case.keys, case.values)
        )
        scores = query.double().view(2, 3, 1, -1) @ keys[:, None].transpose(-1, -2) * scale
        out.append((torch.softmax(scores, -1) @ values[:, None]).reshape(6, -1))
    return torch.stack(out)


@pytest.mark.parametrize("seed", range(3))
def test_torch_attention_is_that_of_float64_though_the_rest_of_the_cache_is_nan(seed):
    case = random_case(seed)
    attended = decode_attention(*case, 0.2)
    torch.testing.assert_close(attended[:3].double(), oracle(case, 0.2), rtol=1e-5, atol=1e-5)
    assert attended.shape == (4, 6, 16)


@pytest.mark.parametrize("seed", range(3))
def test_nki_kernel_is_that_of_float64_though_the_rest_of_the_cache_is_nan(seed):
    case = random_case(seed)
    with fake_nki.installed():
        attended = nki_decode_attention()(*case, 0.2)
    torch.testing.assert_close(attended[:3].double(), oracle(case, 0.2), rtol=1e-5, atol=1e-5)


def test_nki_kernel_takes_contexts_of_several_tiles():
    case = random_case(7)
    wide = case._replace(table=torch.nn.functional.pad(case.table, (0, 9), value=-1))
    with fake_nki.installed():
        attended = nki_decode_attention()(*wide, 0.3)
    torch.testing.assert_close(attended[:3].double(), oracle(case, 0.3), rtol=1e-5, atol=1e-5)


def test_without_nki_there_is_no_kernel():
    assert nki_decode_attention() is None


@pytest.mark.parametrize("extra", [{"sliding_window": 8}, {"softcap": 30.0}, {"alibi": torch.ones(2)}])
def test_variants_are_left_to_the_static_decoder(extra):
    spec = KVSpec(num_layers=1, num_kv_heads=2, head_size=64, value_head_size=64, block_size=16, dtype="bfloat16")
    assert serves(spec, AttentionParams(scale=1.0))
    assert not serves(spec, AttentionParams(scale=1.0, **extra))
