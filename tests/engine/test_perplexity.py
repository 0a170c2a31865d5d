"""What the demo model loses by how its weights and its cache are kept: perplexity of a text, and greedy tokens.

`make test` scores the text's first 200 tokens; the whole of it is scored in `make test-all`.
"""

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pageport import LLM, SamplingParams
from pageport.models.resolve import resolve_model
from pageport.text.tokenizer import load_tokenizer

_spec = importlib.util.spec_from_file_location("smollm2_prompts", Path(__file__).with_name("smollm2_prompts.py"))
assert _spec is not None and _spec.loader is not None
smollm2_prompts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(smollm2_prompts)

pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(1800), pytest.mark.usefixtures("unchecked_shapes")]
PROSE = Path(__file__).with_name("data") / "prose.txt"
FEW = 200
ALL = 2000
LENGTHS = pytest.mark.parametrize("num_tokens", [FEW, pytest.param(ALL, marks=pytest.mark.full)])
# What a long text may lose. Measured: 1.1 % over e5m2, which has two bits of a number's mantissa, 0.1 % over e4m3.
CACHES_OF_BYTES = ("fp8_e4m3", "fp8_e5m2", "int8")
MOST_LOST_BY_CACHE = 0.02
MOST_LOST_BY_QUANTISATION = {"int8": 0.03, "int4": 0.03}
# What rounding does to single tokens averages out over many; 200 are off by up to this share more, either way.
FEW_ARE_OFF_BY = 0.03


@cache
def perplexity(num_tokens: int, **settings: str) -> float:
    """Return the perplexity of the text's first tokens, each predicted from all before it."""
    prompt = tokenizer().encode(PROSE.read_text())[:num_tokens]
    memory = {"max_model_len": 2048, "max_num_seqs": 1, "max_num_batched_tokens": 256, "num_kv_blocks": 128}
    with LLM("smollm2", **memory, **settings) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
    scored = zip(prompt[1:], output.prompt_logprobs[1:], strict=True)
    return float(np.exp(-np.mean([entry[token].logprob for token, entry in scored])))


@cache
def tokenizer():
    return load_tokenizer(resolve_model("smollm2", None))


def allowed(share: float, num_tokens: int) -> float:
    return share + (FEW_ARE_OFF_BY if num_tokens == FEW else 0)


@LENGTHS
def test_perplexity_of_the_files_own_format_is_that_of_float32(num_tokens):
    exact = perplexity(num_tokens, dtype="float32")
    # A model whose weights are read wrongly is in the thousands.
    assert exact < (30 if num_tokens == ALL else 80)
    assert perplexity(num_tokens, dtype="auto") == pytest.approx(exact, rel=allowed(0.01, num_tokens))


@LENGTHS
@pytest.mark.parametrize("kept", CACHES_OF_BYTES)
def test_perplexity_over_a_cache_of_bytes_is_that_over_a_float32_cache(kept, num_tokens):
    exact = perplexity(num_tokens, dtype="auto", kv_cache_dtype="float32")
    rounded = perplexity(num_tokens, dtype="auto", kv_cache_dtype=kept)
    assert rounded == pytest.approx(exact, rel=allowed(MOST_LOST_BY_CACHE, num_tokens))
    # Rounding shows: the setting is not ignored.
    assert rounded != exact


@LENGTHS
@pytest.mark.parametrize("quantisation", MOST_LOST_BY_QUANTISATION)
def test_perplexity_of_weights_quantised_while_loading_is_near_that_of_float32(quantisation, num_tokens):
    exact = perplexity(num_tokens, dtype="float32")
    quantised = perplexity(num_tokens, quantization=quantisation)
    assert quantised == pytest.approx(exact, rel=allowed(MOST_LOST_BY_QUANTISATION[quantisation], num_tokens))
    assert quantised != exact


def answers(prompts: list[list[int]], one_by_one: bool, **settings: object) -> list[tuple[list[int], list[float]]]:
    """Return the greedy tokens of each prompt with their log-probabilities."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0)
    memory = {"max_model_len": 512, "num_kv_blocks": 800, "enable_prefix_caching": False}
    with LLM("smollm2", **memory, **settings) as llm:
        calls = [[prompt] for prompt in prompts] if one_by_one else [prompts]
        outputs = [output for call in calls for output in llm.generate(call, params, use_tqdm=False)]
    choices = [output.outputs[0] for output in outputs]
    return [
        (c.token_ids, [entry[token].logprob for token, entry in zip(c.token_ids, c.logprobs, strict=True)])
        for c in choices
    ]


@pytest.mark.parametrize(
    ("kept", "count"),
    [("auto", 8), *(pytest.param(kept, 20, marks=pytest.mark.full) for kept in ("auto", *CACHES_OF_BYTES))],
)
def test_greedy_tokens_and_their_logprobs_have_the_same_bits_alone_and_in_any_batch(kept, count):
    prompts = [prompt[:300] for prompt in smollm2_prompts.prompts(tokenizer())[:count]]
    alone = answers(prompts, one_by_one=True, kv_cache_dtype=kept)
    for settings in ({}, {"max_num_batched_tokens": 37}, {"max_num_seqs": 3}):
        assert answers(prompts, one_by_one=False, kv_cache_dtype=kept, **settings) == alone, settings
    assert answers(prompts[::-1], one_by_one=False, kv_cache_dtype=kept) == alone[::-1]
