"""Which shapes an engine compiles, and which of them a step takes."""

import pytest

from pageport.backend.capabilities import Capabilities
from pageport.backend.program import Bucket
from pageport.engine.bucket_plan import BucketPlan, longest_context
from pageport.errors import UnsupportedFeature


def plan_of(
    *,
    tokens: tuple[int, ...] = (16, 64, 256),
    requests: tuple[int, ...] = (1, 4, 16),
    contexts: tuple[int, ...] = (128, 512),
    max_num_seqs: int = 16,
    step_tokens: int = 256,
    max_model_len: int = 512,
    block_sizes: tuple[int, ...] = (16,),
) -> BucketPlan:
    capabilities = Capabilities(
        static_shapes=True, token_buckets=tokens, request_buckets=requests, context_buckets=contexts
    )
    return BucketPlan(
        capabilities,
        max_num_seqs=max_num_seqs,
        step_tokens=step_tokens,
        max_model_len=max_model_len,
        block_sizes=block_sizes,
    )


def test_every_combination_is_a_bucket() -> None:
    buckets = plan_of(tokens=(8, 32), requests=(2, 4), contexts=(64, 128)).buckets
    assert buckets == (
        *(Bucket(n, n, context) for n in (2, 4) for context in (64, 128)),
        *(Bucket(1, n, context) for n in (8, 32) for context in (64, 128)),
    )


def test_one_decode_and_a_prompt_of_one_token_are_one_bucket() -> None:
    assert plan_of(tokens=(1,), requests=(1,), contexts=(64,), step_tokens=1, max_num_seqs=1).buckets == (
        Bucket(1, 1, 64),
    )


@pytest.mark.parametrize(
    ("max_num_seqs", "left"), [(1, {1}), (2, {1, 4}), (4, {1, 4}), (5, {1, 4, 16}), (99, {1, 4, 16})]
)
def test_decodes_that_no_step_can_have_are_left_out(max_num_seqs: int, left: set[int]) -> None:
    assert {bucket.requests for bucket in plan_of(max_num_seqs=max_num_seqs).buckets} == left


def test_prompts_and_contexts_beyond_the_limits_are_left_out() -> None:
    plan = plan_of(step_tokens=40, max_model_len=128)
    assert {bucket.tokens for bucket in plan.buckets if bucket.requests == 1} == {1, 16, 64}
    assert {bucket.context for bucket in plan.buckets} == {128}


def test_without_declared_contexts_there_is_one_for_the_longest_sequence_in_whole_blocks() -> None:
    plan = plan_of(contexts=(), max_model_len=500, block_sizes=(16, 24))
    assert {bucket.context for bucket in plan.buckets} == {528}


def test_a_step_takes_the_smallest_bucket_that_holds_it() -> None:
    plan = plan_of()
    assert plan.of_decodes(3, 128) == Bucket(4, 4, 128)
    assert plan.of_decodes(5, 129) == Bucket(16, 16, 512)
    assert plan.of_prompt(16, 20) == Bucket(1, 16, 128)
    assert plan.of_prompt(65, 512) == Bucket(1, 256, 512)
    assert (plan.max_decodes, plan.max_tokens) == (16, 256)


def test_a_context_beyond_all_buckets_is_refused_with_the_longest_one() -> None:
    capabilities = Capabilities(static_shapes=True, context_buckets=(128, 512))
    with pytest.raises(
        UnsupportedFeature, match="is 513; this device compiles programs for contexts of up to 512 tokens"
    ):
        longest_context(capabilities, 513)
    assert longest_context(capabilities, 512) == longest_context(capabilities, None) == 512
    assert longest_context(Capabilities(), 513) is None
