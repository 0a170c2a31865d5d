"""KV waste as reported, on 64 requests of mixed length all at once (32 to 512 tokens in, 16 to 256 out)."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pageport import LLM, SamplingParams
from pageport.testing.tiny_model import write_tiny_llama

SETTINGS = {
    "max_num_seqs": 64,
    "max_model_len": 800,
    "num_kv_blocks": 64 * 50,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
}


@pytest.mark.full
@pytest.mark.parametrize("sliding_window", [None, 512])
def test_mixed_lengths_waste_under_four_percent(
    open_llm: Callable[..., LLM], tmp_path: Path, sliding_window: int | None
) -> None:
    model = write_tiny_llama(tmp_path / "model", sliding_window=sliding_window, num_hidden_layers=1)
    random_numbers = random.Random(1234)
    prompts, params = [], []
    for _ in range(64):
        prompts.append([random_numbers.randrange(256) for _ in range(random_numbers.randint(32, 512))])
        params.append(SamplingParams(temperature=0, ignore_eos=True, max_tokens=random_numbers.randint(16, 256)))
    llm = open_llm(model, **SETTINGS)
    llm.generate(prompts, params, use_tqdm=False)
    assert all(0 < waste < 0.04 for waste in llm.stats().kv_waste_ratio)
    print(f"window {sliding_window}: waste {llm.stats().kv_waste_ratio}")
