"""The offline API on a tiny random model."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pageport import LLM, BeamSearchParams, SamplingParams
from pageport.errors import ConfigurationError, InvalidParameter, RequestTooLong

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["Hello", "The quick brown fox jumps over the lazy dog. " * 3, "x", "naïve 🔥 žluť 日本", "abc " * 20]
OpenLLM = Callable[..., LLM]


def tokens(llm: LLM, prompts: list[str], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> list[list[int]]:
    """Each prompt on its own, one after the other."""
    with LLM(str(tiny_llama), dtype="float32", max_num_seqs=1, num_kv_blocks=64, max_model_len=256) as llm:
        return [tokens(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 8},
        {"enable_prefix_caching": False},
        {"num_kv_blocks": 20},
        {"num_kv_blocks": 20, "swap_space": 0.01},
        {"pipeline_depth": 1},
        {"pipeline_depth": 1, "num_kv_blocks": 20, "max_num_batched_tokens": 8},
        {"block_size": 32},
        {"max_num_seqs": 2},
    ],
    ids=lambda settings: ",".join(f"{k}={v}" for k, v in settings.items()) or "default",
)
def test_batching_and_memory_never_change_a_greedy_answer(
    open_llm: OpenLLM, tiny_llama: Path, expected: list[list[int]], settings: dict[str, object]
) -> None:
    llm = open_llm(tiny_llama, **settings)
    assert tokens(llm, PROMPTS) == expected
    llm._engine.check()
    assert llm.stats().kv_blocks_used == 0


def test_a_small_cache_really_preempts(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama, num_kv_blocks=20)
    tokens(llm, PROMPTS)
    assert llm.stats().preemptions_total > 0


def test_a_repeated_prompt_hits_the_prefix_cache_and_answers_the_same(
    open_llm: OpenLLM, tiny_llama: Path, expected: list[list[int]]
) -> None:
    llm = open_llm(tiny_llama)
    assert tokens(llm, PROMPTS[1:2]) == expected[1:2]
    output = llm.generate(PROMPTS[1], GREEDY, use_tqdm=False)[0]
    assert output.outputs[0].token_ids == expected[1]
    assert output.num_cached_tokens == 128


def test_sampling_repeats_with_a_seed_alone_and_in_a_batch(open_llm: OpenLLM, tiny_llama: Path) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True)
    llm = open_llm(tiny_llama)
    alone = tokens(llm, PROMPTS[:1], params)
    assert tokens(llm, PROMPTS, params)[:1] == alone
    assert tokens(open_llm(tiny_llama, num_kv_blocks=20, pipeline_depth=1), PROMPTS, params)[:1] == alone


def test_choices_of_one_prompt_differ_and_repeat(open_llm: OpenLLM, tiny_llama: Path) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=16, ignore_eos=True)
    llm = open_llm(tiny_llama)
    first, second = (llm.generate("Hello", params, use_tqdm=False)[0].outputs for _ in range(2))
    assert [choice.index for choice in first] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in first}) == 4
    assert [choice.token_ids for choice in first] == [choice.token_ids for choice in second]


def test_eight_choices_compute_the_prompt_once_and_copy_at_most_eight_blocks(
    open_llm: OpenLLM, tiny_llama: Path
) -> None:
    llm = open_llm(tiny_llama, max_model_len=600)
    params = SamplingParams(n=8, temperature=1.0, seed=1, max_tokens=32, ignore_eos=True)
    llm.generate([[5 + i % 200 for i in range(500)]], params, use_tqdm=False)
    stats = llm.stats()
    assert stats.prompt_tokens_total == 500
    assert stats.computed_tokens_total == 500 + 8 * 31
    assert stats.copied_blocks_total <= 8
    assert stats.kv_blocks_used == 0


def test_beam_search_frees_every_block(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    output = llm.beam_search("Hello", BeamSearchParams(beam_width=4, max_tokens=12))[0]
    assert len(output.outputs) == 4
    scores = [choice.cumulative_logprob for choice in output.outputs]
    assert scores == sorted(scores, reverse=True) or len({len(c.token_ids) for c in output.outputs}) > 1
    assert llm.stats().kv_blocks_used == 0


def test_streaming_concatenates_to_the_answer(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    whole = llm.generate(PROMPTS[3], GREEDY, use_tqdm=False)[0].outputs[0]
    deltas = list(llm.stream(PROMPTS[3], GREEDY))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]


def test_leaving_a_stream_aborts_it(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    for _ in llm.stream("Hello", GREEDY):
        break
    llm.generate("Hello", GREEDY, use_tqdm=False)
    assert llm.stats().kv_blocks_used == 0
    assert llm.stats().finished_total["abort"] == 1


@pytest.mark.parametrize("length", [15, 16, 31, 32, 33, 48])
def test_prompt_logprobs_are_whole_with_a_cached_prefix(open_llm: OpenLLM, tiny_llama: Path, length: int) -> None:
    """LOG-02."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    llm = open_llm(tiny_llama)
    first, second = (llm.generate([list(range(length))], params, use_tqdm=False)[0] for _ in range(2))
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == length
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs == second.prompt_logprobs


def test_chat_goes_through_the_template(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    output = llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)[0]
    assert output.prompt_token_ids == [256, *b"[user] hi\n[assistant] "]


def test_two_engines_live_in_one_process(
    open_llm: OpenLLM, tiny_llama: Path, tiny_gpt2: Path, expected: list[list[int]]
) -> None:
    llama, gpt2 = open_llm(tiny_llama), open_llm(tiny_gpt2, max_model_len=256)
    before = tokens(gpt2, PROMPTS)
    assert tokens(llama, PROMPTS) == expected
    assert tokens(gpt2, PROMPTS) == before
    assert before != expected


def test_a_logits_processor_forces_its_token(open_llm: OpenLLM, tiny_llama: Path) -> None:
    def only_a(_output: list[int], logits: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(logits, -torch.inf)
        forced[97] = 0
        return forced

    params = SamplingParams(temperature=1.0, seed=3, max_tokens=5, logits_processors=[only_a])
    for depth in (0, 1):
        assert open_llm(tiny_llama, pipeline_depth=depth).generate("x", params)[0].outputs[0].text == "aaaaa"


def test_impossible_requests_are_refused_before_anything_runs(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    with pytest.raises(RequestTooLong, match="256"):
        llm.generate(["fine", "x" * 300], GREEDY)
    with pytest.raises(InvalidParameter, match="temperature"):
        llm.generate("x", SamplingParams(temperature=-1))
    assert llm.stats().steps_total == 0


@pytest.mark.smollm2
def test_closing_gives_the_memory_back() -> None:
    code = """
from pathlib import Path
from pageport import LLM, SamplingParams

for _ in range(3):
    with LLM("smollm2", dtype="float32", max_model_len=512, max_num_seqs=4) as llm:
        llm.generate("Hello", SamplingParams(max_tokens=2))
    print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    first, _, third = (int(line) / 1e6 for line in shown.split())
    assert third < first + 30  # MB; the weights alone are 540
    assert third < 450


def test_an_unknown_setting_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="max_model_len"):
        LLM("anything", max_model_length=5)


def test_a_sliding_window_model_decodes_far_past_its_window(open_llm: OpenLLM, tiny_mistral: Path) -> None:
    """KVC-08."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompt = [[(7 * i) % 250 for i in range(70)]]
    answers = [
        open_llm(tiny_mistral, max_num_batched_tokens=chunk, enable_prefix_caching=caching)
        .generate(prompt, params, use_tqdm=False)[0]
        .outputs[0]
        .token_ids
        for chunk in (1, 7, 16, 17, 128)
        for caching in (True, False)
    ]
    assert answers == [answers[0]] * len(answers)
