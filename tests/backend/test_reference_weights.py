"""Weights: conversion, fusing, sharding, and what is refused."""

from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch

from pageport.backend import StoredTensor, WeightSpec
from pageport.backend.reference import weights as reference_weights
from pageport.errors import CorruptWeights, UnsupportedFeature

SCHEMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def plain(tensor: torch.Tensor, source: str = "a.safetensors: w") -> StoredTensor:
    return StoredTensor(
        scheme=SCHEMES[tensor.dtype], shape=tuple(tensor.shape), read=lambda: {"weight": tensor}, source=source
    )


def quantised(dense: torch.Tensor, scheme: str) -> tuple[StoredTensor, torch.Tensor]:
    """Return the matrix in GGML blocks, and the values that gguf reads back."""
    kind = gguf.GGMLQuantizationType[scheme.upper()]
    blocks = gguf.quants.quantize(dense.numpy(), kind)
    stored = StoredTensor(
        scheme=scheme, shape=tuple(dense.shape), read=lambda: {"blocks": torch.from_numpy(blocks)}, source="m.gguf: w"
    )
    return stored, torch.from_numpy(gguf.quants.dequantize(blocks, kind))


def spec(out_features: int, in_features: int, compute_dtype: str = "float32", **shard: int) -> WeightSpec:
    return WeightSpec(
        name="layers.0.qkv", out_features=out_features, in_features=in_features, compute_dtype=compute_dtype, **shard
    )


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_weights_become_the_compute_dtype(device, stored, compute):
    dense = random(5, 8).to(stored)
    weight = device.prepare_weight(spec(5, 8, compute), [plain(dense)])
    assert torch.equal(weight.dense, dense.to(getattr(torch, compute)))
    assert device.weight_bytes(weight) == 5 * 8 * weight.dense.itemsize


def test_quantising_is_refused_and_not_left_out(device):
    quantised_spec = replace(spec(5, 8), quantisation="int4")
    with pytest.raises(UnsupportedFeature, match=r"layers\.0\.qkv: .* does not quantise to int4"):
        device.prepare_weight(quantised_spec, [plain(random(5, 8))])


def test_prepared_weight_keeps_no_mapping_alive(device):
    dense = random(5, 8)
    weight = device.prepare_weight(spec(5, 8), [plain(dense)])
    dense.zero_()
    assert weight.dense.abs().sum() > 0


def test_parts_of_several_schemes_are_fused_by_rows(device):
    """Mixed types within one fused projection (GGU-05)."""
    query, query_values = quantised(random(6, 64), "q5_0")
    key, key_values = quantised(random(2, 64, seed=1), "q8_0")
    value = random(2, 64, seed=2).half()
    weight = device.prepare_weight(spec(10, 64), [query, key, plain(value)])
    assert torch.equal(weight.dense, torch.cat([query_values, key_values, value.float()]))


@pytest.mark.parametrize("slab_bytes", [1, 4 * 64 * 3])
def test_slabs_leave_no_seam(device, monkeypatch, slab_bytes):
    monkeypatch.setattr(reference_weights, "SLAB_BYTES", slab_bytes)
    stored, values = quantised(random(7, 64), "q4_1")
    weight = device.prepare_weight(spec(7, 64, "bfloat16"), [stored])
    assert torch.equal(weight.dense, values.bfloat16())


def test_row_shard_takes_its_share_of_every_part(device):
    query, key = random(8, 32), random(4, 32, seed=1)
    shard = {"shard_rank": 1, "shard_world_size": 2, "shard_axis": 0}
    weight = device.prepare_weight(spec(12, 32, **shard), [plain(query), plain(key)])
    assert torch.equal(weight.dense, torch.cat([query[4:], key[2:]]))


@pytest.mark.parametrize("rank", [0, 1])
def test_column_shards_of_quantised_rows_are_whole_blocks(device, rank):
    stored, values = quantised(random(3, 128), "q8_0")
    shard = {"shard_rank": rank, "shard_world_size": 2, "shard_axis": 1}
    weight = device.prepare_weight(spec(3, 128, **shard), [stored])
    assert torch.equal(weight.dense, values[:, 64 * rank : 64 * rank + 64])


def test_column_shard_through_a_block_is_refused(device):
    stored, _ = quantised(random(3, 96), "q8_0")
    with pytest.raises(UnsupportedFeature, match="columns 0 to 48 cut through q8_0 blocks of 32"):
        device.prepare_weight(spec(3, 96, shard_rank=0, shard_world_size=2, shard_axis=1), [stored])


def test_rows_that_do_not_divide_are_refused(device):
    """Ranks that do not divide the heads (ARC-06)."""
    with pytest.raises(UnsupportedFeature, match="9 rows cannot be shared equally by 2 ranks"):
        device.prepare_weight(spec(9, 8, shard_rank=0, shard_world_size=2, shard_axis=0), [plain(random(9, 8))])


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_values_beyond_float16_are_refused_and_not_made_infinite(device, stored):
    """A bf16 checkpoint never silently overflows in float16 (NUM-01)."""
    dense = random(4, 8)
    dense[2, 3] = 70000.0
    with pytest.raises(UnsupportedFeature, match=r"w holds values beyond float16.*--dtype bfloat16 or float32"):
        device.prepare_weight(spec(4, 8, "float16"), [plain(dense.to(stored))])


def test_parts_that_do_not_add_up_are_refused(device):
    with pytest.raises(CorruptWeights, match=r"should be 9 x 8; its parts are 4 x 8 \(a.safetensors: w\)"):
        device.prepare_weight(spec(9, 8), [plain(random(4, 8))])


def test_tensor_of_another_shape_than_announced_is_refused(device):
    part = StoredTensor(scheme="f32", shape=(4, 8), read=lambda: {"weight": random(4, 7)}, source="a: w")
    with pytest.raises(CorruptWeights, match=r"a: w is stored as \[4, 7\] where \[4, 8\] was announced"):
        device.prepare_weight(spec(4, 8), [part])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_out", [False, True])
def test_linear_multiplies_by_the_transpose_and_adds_the_bias(device, with_bias, with_out):
    dense, x = random(6, 8), random(3, 8, seed=1)
    weight = device.prepare_weight(spec(6, 8), [plain(dense)])
    bias = random(6, seed=2) if with_bias else None
    out = torch.full((3, 6), torch.nan) if with_out else None
    result = device.linear(weight, x, bias, out)
    expected = x.double() @ dense.double().T + (bias.double() if with_bias else 0)
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)
    assert out is None or result.data_ptr() == out.data_ptr()


def test_embedding_and_head_may_be_one_weight(device):
    dense = random(10, 8)
    weight = device.prepare_weight(spec(10, 8), [plain(dense)])
    out = torch.empty(3, 8)
    assert torch.equal(device.embed(weight, torch.tensor([7, 0, 7]), out), dense[[7, 0, 7]])
    assert np.isclose(device.linear(weight, out)[1, 0], float(dense[0] @ dense[0]), atol=1e-4)
