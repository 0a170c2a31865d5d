"""Every parameter, alone and combined, against a slow sampler in float64 that shares no code with the real one."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from pageport.sampling.params import SamplingParams
from pageport.sampling.row import RowSampling
from pageport.sampling.seed import child_seed

VOCAB = 40
MASK = 0xFFFFFFFF


def reference_noise(seed: int, position: int, token_id: int) -> float:
    c, k = [token_id // 4, position, 0, 0], [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return -math.log(-math.log((c[token_id % 4] + 0.5) / 2**32))


@dataclass
class Case:
    params: SamplingParams
    prompt: list[int]
    output: list[int]
    seed: int = 0
    index: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    logits: list[float] = field(default_factory=list)


def reference_logits(case: Case) -> list[float]:
    p, logits, output = case.params, list(case.logits), case.output
    if p.allowed_token_ids is not None:
        logits = [x if i in p.allowed_token_ids else -math.inf for i, x in enumerate(logits)]
    for *before, last in case.bad_words:
        if len(before) <= len(output) and output[len(output) - len(before) :] == before:
            logits[last] = -math.inf
    if len(output) < p.min_tokens:
        for token_id in case.stop_token_ids:
            logits[token_id] = -math.inf
    for token_id, bias in (p.logit_bias or {}).items():
        logits[token_id] += bias
    for processor in p.logits_processors or ():
        logits = processor(output, torch.tensor(logits)).tolist()
    for token_id in set(case.prompt + output):
        x = logits[token_id]
        logits[token_id] = x / p.repetition_penalty if x > 0 else x * p.repetition_penalty
    for token_id, count in Counter(output).items():
        logits[token_id] -= p.frequency_penalty * count + p.presence_penalty
    return logits


def reference_survivors(scaled: list[float], p: SamplingParams) -> list[int]:
    kept = sorted(range(VOCAB), key=lambda i: (-scaled[i], i))
    kept = [i for i in kept if math.exp(scaled[i] - scaled[kept[0]]) >= p.min_p and scaled[i] > -math.inf]
    if p.top_k > 0:
        kept = kept[: p.top_k]
    weights = [math.exp(scaled[i] - scaled[kept[0]]) for i in kept]
    total, sum_so_far = math.fsum(weights), 0.0
    for count, weight in enumerate(weights, 1):
        sum_so_far += weight / total
        if sum_so_far >= p.top_p and p.top_p < 1:
            return kept[:count]
    return kept


def reference_token(case: Case) -> int:
    logits = reference_logits(case)
    if case.params.temperature < 1e-5:
        return logits.index(max(logits))
    scaled = [x / case.params.temperature for x in logits]
    seed = child_seed(case.seed, case.index)
    survivors = reference_survivors(scaled, case.params)
    return max(survivors, key=lambda i: scaled[i] + reference_noise(seed, len(case.output), i))


def add_ramp(output_token_ids: list[int], logits: Any) -> Any:
    return logits + torch.arange(VOCAB) * 0.05 * (1 + len(output_token_ids))


# Each value is drawn or left at its default.
CHOICES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.3, 0.9, 1.0, 1.7],
    "top_p": [0.1, 0.5, 0.9, 0.99],
    "top_k": [1, 3, 10, 39, 200, -1],
    "min_p": [0.02, 0.2, 0.7, 1.0],
    "presence_penalty": [-2.0, 0.7, 2.0],
    "frequency_penalty": [-0.4, 0.5, 1.3],
    "repetition_penalty": [0.7, 1.2, 3.0],
    "min_tokens": [3, 100],
    "logit_bias": [{3: 4.0, 7: -100.0}, {0: 2.5}],
    "allowed_token_ids": [[1, 2, 3, 5, 8, 13, 21, 34], list(range(0, 40, 2))],
    "logits_processors": [[add_ramp], [add_ramp, lambda ids, logits: logits * 0.5]],
}


def random_case(generator: np.random.Generator, names: list[str]) -> Case:
    fields: dict[str, Any] = {name: CHOICES[name][generator.integers(len(CHOICES[name]))] for name in names}
    fields.setdefault("max_tokens", None)
    words = generator.integers(0, 12, (6, 3)).tolist()
    return Case(
        params=SamplingParams(**fields),
        prompt=generator.integers(0, 12, generator.integers(1, 9)).tolist(),
        output=generator.integers(0, 12, generator.integers(0, 9)).tolist(),
        seed=int(generator.integers(0, 2**63)),
        index=int(generator.integers(0, 4)),
        stop_token_ids=frozenset({1, 2, 30}),
        bad_words=tuple(tuple(word[:length]) for word, length in zip(words, (1, 2, 2, 2, 3, 2), strict=True)),
        logits=(generator.normal(size=VOCAB) * 3).astype(np.float32).tolist(),
    )


def check(cases: list[Case], run: Any) -> None:
    output = run(
        torch.tensor([case.logits for case in cases]),
        [
            RowSampling(
                params=case.params,
                seed=case.seed,
                stop_token_ids=case.stop_token_ids,
                bad_words_token_ids=case.bad_words,
            )
            for case in cases
        ],
        prompts=[case.prompt for case in cases],
        outputs=[case.output for case in cases],
        indexes=[case.index for case in cases],
    )
    assert output.errors() == {}
    assert output.token_ids.tolist() == [reference_token(case) for case in cases]


@pytest.mark.parametrize("name", list(CHOICES))
def test_one_parameter(name: str, run: Any) -> None:
    generator = np.random.default_rng(len(name))
    check([random_case(generator, [name]) for _ in range(60)], run)


@pytest.mark.parametrize("seed", range(4))
def test_any_parameters_in_one_batch(seed: int, run: Any) -> None:
    generator = np.random.default_rng(seed)
    names = list(CHOICES)
    check(
        [random_case(generator, [n for n in names if generator.random() < 0.4]) for _ in range(100)],
        run,
    )


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 200))
def test_any_parameters_in_many_batches(seed: int, run: Any) -> None:
    test_any_parameters_in_one_batch(seed, run)
