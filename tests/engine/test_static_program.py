"""The inherited program of a whole decoder computes what the decoder computes op by op, for every architecture."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from pageport.backend.op_table import compile_ops
from pageport.backend.program import Bucket
from pageport.engine.builder import OpenModel
from pageport.errors import UnsupportedFeature
from pageport.models.decoder import Decoder
from pageport.models.description import describe_decoder
from pageport.models.spec import cache_groups
from pageport.models.weights import load_decoder_weights
from pageport.testing.conformance.program_scene import ProgramRow, ProgramScene
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.static_device import StaticDevice

from ..models.conftest import VARIANTS, PagedModel, make_model

BLOCK, CONTEXT = 4, 64
PROMPT, DECODES = Bucket(1, 16, CONTEXT), Bucket(4, 4, CONTEXT)
# Norms, heads, windows, positions and residuals of every kind; the full run has all architectures.
FEW = ("llama", "gpt2-square", "qwen3", "gemma2", "gemma3", "gpt-neox-parallel")
# Sums in another order; states and logits are about 1 to 10.
TOLERANCE = {"atol": 2e-4, "rtol": 1e-4}


def compiled_scene(tiny: Any, dtype: str = "float32") -> ProgramScene:
    """Return a model as a program on a simulated device of static shapes."""
    return ProgramScene(
        StaticDevice(token_buckets=(16,), request_buckets=(4,)),
        OpenModel(tiny.checkpoint, tiny.spec),
        [PROMPT, DECODES],
        dtype=dtype,
        kv_dtype=dtype,
        block_size=BLOCK,
        num_blocks=50,
        generator=np.random.default_rng(3),
    )


@cache
def tiny_model(variant: str) -> Any:
    return make_model(*VARIANTS[variant])


def paged(tiny: Any) -> PagedModel:
    """Return the same model op by op."""
    device = ReferenceDevice()
    ops, weights = compile_ops(device), load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")
    decoder = Decoder(
        tiny.spec,
        weights,
        ops,
        dtype=torch.float32,
        device=device.torch_device,
        max_tokens=64,
        max_model_len=CONTEXT,
    )
    return PagedModel(device, ops, tiny.spec, decoder, BLOCK, "float32")


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, 99, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize(
    "variant", [*FEW, *(pytest.param(name, marks=pytest.mark.full) for name in VARIANTS if name not in FEW)]
)
def test_prompts_in_pieces_and_decodes_beside_each_other_are_those_of_the_decoder(variant):
    tiny = tiny_model(variant)
    compiled, by_op = compiled_scene(tiny), paged(tiny)
    rows = []
    for seed, length in enumerate((37, 16, 5)):
        sequence, blocks = tokens(length + 1, seed), compiled.new_blocks(length + 1)
        same, states = by_op.new_blocks(length + 1), []
        for start in range(0, length, 16):
            piece = sequence[start : min(start + 16, length)]
            output = compiled.run(PROMPT, [ProgramRow(piece, start, blocks)])
            states.append(output.hidden()[: len(piece)])
        expected = by_op.hidden([(sequence[:length], 0, same)]).clone()
        torch.testing.assert_close(torch.cat(states), expected, **TOLERANCE)
        torch.testing.assert_close(output.logits(), by_op.decoder.logits(expected[-1:]), **TOLERANCE)
        rows.append((ProgramRow(sequence[length:], length, blocks), same))
    output = compiled.run(DECODES, [row for row, _ in rows])
    expected = by_op.step([(row.tokens, row.start, same) for row, same in rows])
    torch.testing.assert_close(output.logits()[:3], expected, **TOLERANCE)


@pytest.mark.parametrize("variant", ["llama", "gemma2", "gpt-neox-parallel"])
def test_bfloat16_is_near_the_model_in_float32(variant):
    tiny, prompt = tiny_model(variant), tokens(16, 0)
    compiled = compiled_scene(tiny, "bfloat16")
    output = compiled.run(PROMPT, [ProgramRow(prompt, 0, compiled.new_blocks(16))])
    expected = tiny.reference_logits(prompt)[-1]
    assert output.hidden().dtype == torch.bfloat16
    # Each layer rounds to 8 bits what becomes logits of about 2; a third of this was measured.
    assert (output.logits()[0] - expected).abs().max() < 0.1 * expected.std()


def test_a_description_of_a_later_version_is_refused():
    tiny, device = tiny_model("llama"), StaticDevice()
    kv_specs = [group.kv_spec(BLOCK, "float32") for group in cache_groups(tiny.spec)]
    description = describe_decoder(tiny.spec, kv_specs, compute_dtype="float32", max_model_len=CONTEXT)
    weights = load_decoder_weights(tiny.spec, tiny.checkpoint, device, "float32")
    with pytest.raises(UnsupportedFeature, match="version 1; this one needs 2"):
        device.build_model(replace(description, version=2), weights, [], [])
