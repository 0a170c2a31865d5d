"""Programs for TPUs, lowered and compiled where there is none."""

import pytest
from large_decoders import decoder, shapes_of
from pageport_tpu.device import CAPABILITIES
from pageport_tpu.lowering import compile_for, lower
from pageport_tpu.program import StepShapes

from pageport.backend.program import Bucket

CONTEXT, NUM_BLOCKS, TOPOLOGY = 2048, 512, "v5e:2x2"
DECODES = [Bucket(size, size, CONTEXT) for size in CAPABILITIES.request_buckets]
PROMPTS = [Bucket(1, size, CONTEXT) for size in CAPABILITIES.token_buckets]
DECODERS = {
    "32 heads over 8 of 128, block 16": decoder(32, 8, 128, block_size=16, hidden_size=4096, vocab_size=32000),
    "8 heads over 2 of 128, float32": decoder(8, 2, 128, block_size=32, dtype="float32"),
    "12 heads over 4 of 64, block 128": decoder(12, 4, 64, block_size=128),
    "8 heads over 1 of 256, window, softcap": decoder(8, 1, 256, block_size=16, sliding_window=1000, softcap=50.0),
}

every_decoder = pytest.mark.parametrize("name", DECODERS)


def shapes(name: str, bucket: Bucket) -> StepShapes:
    return shapes_of(DECODERS[name], bucket, NUM_BLOCKS)


@every_decoder
@pytest.mark.parametrize("bucket", dict.fromkeys(DECODES + PROMPTS), ids=str)
def test_every_bucket_lowers_to_the_kernel_once_a_layer(name: str, bucket: Bucket) -> None:
    module = lower(shapes(name, bucket))
    assert module.count("stablehlo.custom_call @tpu_custom_call") == 2
    assert f"tensor<{bucket.requests}x{DECODERS[name].vocab_size}x" in module


@pytest.mark.parametrize("bucket", [DECODES[0], DECODES[2], PROMPTS[1]], ids=str)
@every_decoder
def test_tpu_compiler_takes_programs_and_updates_pools_in_place(name: str, bucket: Bucket) -> None:
    memory = compile_for(TOPOLOGY, shapes(name, bucket)).memory_analysis()
    cache = DECODERS[name].cache_groups[0]
    num_bytes = {"float32": 4, "bfloat16": 2}[cache.dtype]
    pool_bytes = NUM_BLOCKS * 2 * cache.block_size * cache.num_kv_heads * 2 * cache.head_size * num_bytes
    assert memory.alias_size_in_bytes >= pool_bytes
    # A copy of any of its four arrays would show.
    assert memory.temp_size_in_bytes < pool_bytes / 4


@pytest.mark.parametrize("topology", ["v4:2x2x1", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_compilers_of_other_chips_take_programs(topology: str) -> None:
    for bucket in (DECODES[1], PROMPTS[0]):
        assert compile_for(topology, shapes("12 heads over 4 of 64, block 128", bucket)) is not None


def test_tpu_compiler_takes_the_longest_prompt_of_the_widest_heads() -> None:
    assert compile_for(TOPOLOGY, shapes(next(iter(DECODERS)), PROMPTS[-1])) is not None
