"""What a load run asks, and when."""

import json
import math
import statistics
from pathlib import Path

import pytest

from pageport.errors import ConfigurationError
from pageport.load.arrivals import arrival_times
from pageport.load.config import DatasetConfig
from pageport.load.dataset import FIRST_TOKEN_ID, make_prompts


@pytest.mark.parametrize("dataset", ["words", "tokens"])
def test_random_prompts_have_the_lengths_asked_for_and_share_their_prefix(dataset: str) -> None:
    config = DatasetConfig(dataset=dataset, num_prompts=30, input_len=20, prefix_len=7, range_ratio=0.5)
    prompts = [p.prompt.split() if isinstance(p.prompt, str) else p.prompt for p in make_prompts(config)]
    assert len(prompts) == 30
    assert {len(prompt) for prompt in prompts} <= set(range(17, 38))
    assert len({len(prompt) for prompt in prompts}) > 3
    assert len({tuple(prompt[:7]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 30


def test_a_seed_decides_the_prompts() -> None:
    first, again, other = (make_prompts(DatasetConfig(num_prompts=4, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_token_ids_are_within_the_vocabulary() -> None:
    prompts = make_prompts(DatasetConfig(dataset="tokens", num_prompts=20, vocab_size=300))
    ids = [token_id for prompt in prompts for token_id in prompt.prompt]
    assert min(ids) >= FIRST_TOKEN_ID and max(ids) < 300


def test_lines_of_a_file_are_prompts_or_conversations_and_are_begun_again(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"prompt": "a", "max_tokens": 3}) + "\n\n" + json.dumps({"messages": messages}) + "\n")
    prompts = make_prompts(DatasetConfig(dataset="jsonl", dataset_path=str(path), num_prompts=3, output_len=9))
    assert [(p.prompt, p.messages, p.max_tokens) for p in prompts] == [
        ("a", None, 3), (None, messages, 9), ("a", None, 3)
    ]  # fmt: skip


def test_of_a_sharegpt_file_the_first_question_of_each_conversation_is_asked(tmp_path: Path) -> None:
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "q1"}, {"from": "gpt", "value": "a"}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": []}, {"id": 4}]))
    prompts = make_prompts(DatasetConfig(dataset="sharegpt", dataset_path=str(path), num_prompts=2))
    assert [prompt.prompt for prompt in prompts] == ["q1", "q1"]


@pytest.mark.parametrize(
    ("dataset", "content", "message"),
    [
        ("jsonl", '{"prompt": "a"}\nnonsense', "line 2 is no JSON"),
        ("jsonl", '{"text": "a"}', "line 1 needs either prompt or messages"),
        ("jsonl", "", "holds no request"),
        ("sharegpt", "{}", "no list of conversations"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, dataset: str, content: str, message: str
) -> None:
    path = tmp_path / "data"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        make_prompts(DatasetConfig(dataset=dataset, dataset_path=str(path)))


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 5.0])
def test_arrivals_come_at_the_rate_and_are_as_bursty_as_asked(burstiness: float) -> None:
    times = arrival_times(20_000, 50.0, burstiness, seed=3)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    # Of a gamma distribution the coefficient of variation is 1/sqrt(shape).
    assert statistics.stdev(gaps) * 50 == pytest.approx(burstiness**-0.5, rel=0.08)


def test_at_an_infinite_rate_all_come_at_once() -> None:
    assert arrival_times(3, math.inf, 1.0, seed=0) == [0.0, 0.0, 0.0]
