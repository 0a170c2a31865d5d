"""Sampling through the engine: seeds, penalties and extreme values, alone and beside others."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pageport import LLM, CompletionOutput, SamplingParams

from ..server.conftest import events
from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
FOUR = {"n": 4, "temperature": 1.0, "seed": 7, "max_tokens": 16, "ignore_eos": True}
PROMPT = "red red red blue"


def choices(llm: LLM, params: SamplingParams, prompt: str = PROMPT) -> list[CompletionOutput]:
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs


def tokens(llm: LLM, params: SamplingParams, prompt: str = PROMPT) -> list[int]:
    return choices(llm, params, prompt)[0].token_ids


def token_of_choice_0_only(llm: LLM) -> int:
    first, *others = (set(choice.token_ids) for choice in choices(llm, SamplingParams(**FOUR)))
    return min(first.difference(*others))


@pytest.mark.parametrize("depth", [0, 1])
def test_choices_stream_to_their_own_ends_after_the_first_one_stopped(
    open_llm: OpenLLM, tiny_llama: Path, depth: int
) -> None:
    """SMP-01: choice 0 ends early; the others are what they were, and everything repeats."""
    llm = open_llm(tiny_llama, pipeline_depth=depth)
    stop = token_of_choice_0_only(llm)
    plain = [choice.token_ids for choice in choices(llm, SamplingParams(**FOUR))]
    assert len({tuple(ids) for ids in plain}) == 4
    params = SamplingParams(**FOUR, stop_token_ids=[stop])
    for _ in range(2):
        deltas = list(llm.stream(PROMPT, params))
        streamed = [[t for d in deltas if d.index == index for t in d.token_ids] for index in range(4)]
        ends = {d.index: d.finish_reason for d in deltas if d.finish_reason}
        assert streamed == [plain[0][: plain[0].index(stop) + 1], *plain[1:]]
        assert ends == {0: "stop", 1: "length", 2: "length", 3: "length"}
    assert len([d for d in deltas if d.finish_reason]) == 4
    assert llm.stats().kv_blocks_used == 0


@pytest.mark.parametrize("path", PATHS)
def test_streamed_choices_of_one_seed_are_the_whole_ones(open_llm: OpenLLM, tiny_llama: Path, path: str) -> None:
    """SMP-01: over HTTP, where choice 0 stops early too; each index has one end."""
    server = LocalServer(open_llm(tiny_llama))
    body: dict[str, Any] = {"prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}], **FOUR}
    texts = [
        choice.get("text") or choice["message"]["content"] for choice in server.post(path, **body).json()["choices"]
    ]
    body["stop"] = [texts[0][2:6]]
    whole = server.post(path, **body).json()["choices"]
    streamed, ends = [""] * 4, Counter[int]()
    for chunk in events(server.post(path, **body, stream=True))[:-1]:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["text"] if path == PATHS[0] else choice["delta"].get("content") or ""
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert ends == {0: 1, 1: 1, 2: 1, 3: 1}
    assert streamed == [c["text"] if path == PATHS[0] else c["message"]["content"] for c in whole]
    assert whole[0]["finish_reason"] == "stop"
    assert "length" in {choice["finish_reason"] for choice in whole[1:]}
    assert len(set(texts)) == 4


def penalised(logits: torch.Tensor, prompt: list[int], output: list[int], params: SamplingParams) -> torch.Tensor:
    """Apply penalties as their definitions say: repetition sees everything, the others what was generated."""
    result = logits.clone()
    for token in set(prompt + output):
        result[token] = (
            result[token] / params.repetition_penalty
            if result[token] > 0
            else (result[token] * params.repetition_penalty)
        )
    for token, count in Counter(output).items():
        result[token] -= count * params.frequency_penalty + params.presence_penalty
    return result


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "penalty", [{"repetition_penalty": 1.5}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}], ids=str
)
def test_each_penalty_sees_its_own_tokens_from_the_first_step_on(
    open_llm: OpenLLM, tiny_llama: Path, penalty: dict[str, float], depth: int
) -> None:
    """SMP-03: every token is the one that a sampler written from the definitions takes."""
    seen: list[torch.Tensor] = []

    def record(_output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits.clone())
        return logits

    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 20}
    params = SamplingParams(**greedy, **penalty, logits_processors=[record])
    llm, prompt = open_llm(tiny_llama, pipeline_depth=depth), list(PROMPT.encode())
    (choice,) = choices(llm, params)
    for step, token in enumerate(choice.token_ids):
        assert token == penalised(seen[step], prompt, choice.token_ids[:step], params).argmax()
        # Log probabilities are the model's own, before penalties.
        assert choice.logprobs is not None
        own = seen[step].log_softmax(-1)[token]
        assert choice.logprobs[step][token].logprob == pytest.approx(float(own), abs=1e-4)
    assert choice.token_ids != tokens(llm, SamplingParams(**greedy))
    assert choice.token_ids == tokens(llm, SamplingParams(**greedy, **penalty))


@pytest.mark.parametrize("depth", [0, 1])
def test_penalties_do_not_depend_on_what_else_runs_or_is_cached(
    open_llm: OpenLLM, tiny_llama: Path, depth: int
) -> None:
    """SMP-04: alone, before and behind a plain request, with its prompt cached, and preempted both ways."""
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 28, "ignore_eos": True}
    plain, penalty = SamplingParams(**greedy), SamplingParams(**greedy, repetition_penalty=2.0, frequency_penalty=0.5)
    prompt, other = "red blue " * 5, "something else " * 4
    llm = open_llm(tiny_llama, pipeline_depth=depth, enable_prefix_caching=False)
    expected, neighbour = tokens(llm, penalty, prompt), tokens(llm, plain, other)
    assert expected != tokens(llm, plain, prompt)
    for settings in ({}, {"num_kv_blocks": 9}, {"num_kv_blocks": 9, "swap_space": 0.001}):
        llm = open_llm(tiny_llama, pipeline_depth=depth, max_model_len=128, **settings)
        for _ in range(2):  # the second time the prompts are cached
            before = llm.generate([other, prompt], [plain, penalty], use_tqdm=False)
            behind = llm.generate([prompt, other], [penalty, plain], use_tqdm=False)
            assert [output.outputs[0].token_ids for output in before] == [neighbour, expected]
            assert [output.outputs[0].token_ids for output in behind] == [expected, neighbour]
        assert bool(llm.stats().preemptions_total) is bool(settings)
        assert llm.stats().prefix_hit_tokens_total > 0
    assert llm.stats().swapped_out_blocks_total > 0


TINY: list[dict[str, Any]] = [
    *({"temperature": t, "top_p": p} for t in (1e-3, 1e-4, 1e-6, 1e-12, 5e-324) for p in (1.0, 1e-4, 1e-9)),
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "min_p": 1.0},
]


def require_greedy(llm: LLM, logit_bias: dict[int, float]) -> list[int]:
    """Prove that every one of ``TINY`` says what temperature 0 says, and return that."""
    fields: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logit_bias": logit_bias, "seed": 3}
    greedy = tokens(llm, SamplingParams(**fields, temperature=0))
    outputs = llm.generate([PROMPT] * len(TINY), [SamplingParams(**fields, **tiny) for tiny in TINY], use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [greedy] * len(TINY)
    assert all(output.error is None for output in outputs)
    return greedy


def test_tiny_temperatures_and_top_p_say_what_greedy_says(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """SMP-05: no exception and no empty text, also with a bias of -100."""
    llm = open_llm(tiny_llama, max_num_seqs=32)
    first = require_greedy(llm, {})[0]
    assert first not in require_greedy(llm, {first: -100.0, 5: -100.0})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tiny_temperatures_and_top_p_survive_half_precision(open_scripted: OpenLLM, dtype: str) -> None:
    """SMP-05: of a model whose likeliest token is clear in any dtype."""
    script = [bytes([byte]) for byte in b"hello, world"]
    llm = open_scripted(script, num_prompt_tokens=len(PROMPT), dtype=dtype, max_num_seqs=32)
    assert bytes(require_greedy(llm, {5: -100.0, 250: -100.0})) == b"hello, world"


def test_extreme_neighbours_change_nothing_and_do_not_fail(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """SMP-07: the largest and smallest values that are allowed, all in one batch with a normal request."""
    normal = SamplingParams(seed=5, top_p=0.9, max_tokens=16, ignore_eos=True)
    extremes: list[dict[str, Any]] = [
        {"temperature": 100.0},
        {"temperature": 100.0, "repetition_penalty": 100.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"temperature": 0.0, "repetition_penalty": 0.01},
        {"temperature": 1.1e-5, "presence_penalty": -2.0, "frequency_penalty": -2.0},
        {"min_p": 1.0, "top_k": 1, "top_p": 1e-12},
        {"logit_bias": {token: 100.0 if token % 2 else -100.0 for token in range(200)}},
    ]
    llm = open_llm(tiny_llama)
    alone = tokens(llm, normal)
    params = [SamplingParams(max_tokens=16, ignore_eos=True, seed=1, **fields) for fields in extremes]
    outputs = llm.generate([PROMPT] * (len(params) + 1), [normal, *params], use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == alone
    assert [(output.error, len(output.outputs[0].token_ids)) for output in outputs] == [(None, 16)] * len(outputs)


def test_a_high_temperature_flattens(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """SMP-07: at 100 every token is about as likely as any other; at 1 few are."""
    llm = open_llm(tiny_llama)

    def distinct(temperature: float) -> int:
        params = SamplingParams(n=8, temperature=temperature, seed=2, max_tokens=32, ignore_eos=True)
        return len({token for choice in choices(llm, params) for token in choice.token_ids})

    # 256 draws from 259 equally likely tokens show 163 of them on average.
    assert distinct(100.0) > 140
    assert distinct(0.2) < 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 999999), ("temperature", 1e30), ("temperature", -1e-9), ("top_p", -1), ("top_p", 0),
        ("repetition_penalty", 0), ("repetition_penalty", 1e-30), ("repetition_penalty", 1e30),
        ("presence_penalty", 1e38), ("frequency_penalty", -2.1), ("min_p", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", PATHS)
def test_values_outside_the_documented_ranges_are_refused(
    open_llm: OpenLLM, tiny_llama: Path, path: str, field: str, value: float
) -> None:
    """SMP-07."""
    server = LocalServer(open_llm(tiny_llama))
    response = server.post(path, prompt="a", messages=[{"role": "user", "content": "a"}], **{field: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, field)
    assert server.llm.stats().steps_total == 0
