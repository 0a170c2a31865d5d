"""Embeddings are the model's hidden states, however the prompt was computed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pageport import LLM, SamplingParams
from pageport.errors import InvalidParameter

from .engine_drive import EngineDrive

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
PROMPTS = [[5], [7, 8, 9], [(31 * i) % 250 for i in range(70)], [(17 * i) % 250 for i in range(33)]]


def reference(model: Path, prompt: list[int], pooling: str) -> Any:
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(model, dtype=torch.float32)(torch.tensor([prompt])).last_hidden_state[0]
    return (hidden.mean(0) if pooling == "mean" else hidden[-1]).numpy()


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 8}, {"pipeline_depth": 1, "max_num_batched_tokens": 16}]
)
def test_embeddings_are_those_of_transformers_in_chunks_of_any_size(
    open_llm: OpenLLM, tiny_llama: Path, pooling: Any, settings: dict[str, Any]
) -> None:
    llm = open_llm(tiny_llama, **settings)
    for _ in range(2):  # the second time every prompt is in the prefix cache
        found = llm.embed(PROMPTS, pooling=pooling, normalize=False)
        for prompt, vector in zip(PROMPTS, found, strict=True):
            np.testing.assert_allclose(vector, reference(tiny_llama, prompt, pooling), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("settings", [{}, {"swap_space": 0.001}])
def test_a_preempted_prompt_has_the_embedding_that_it_has_alone(
    open_llm: OpenLLM, tiny_llama: Path, settings: dict[str, Any]
) -> None:
    alone = open_llm(tiny_llama).embed(PROMPTS[2], normalize=False)[0]
    llm = open_llm(tiny_llama, num_kv_blocks=16, max_model_len=128, max_num_batched_tokens=12, **settings)
    drive = EngineDrive(llm)
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    others = [drive.add([k + 1] * 30, long, priority=0) for k in range(3)]
    params = SamplingParams(temperature=0, max_tokens=1, pooling="mean")
    embedded = [drive.add(PROMPTS[2], params, priority=1) for _ in range(2)]
    outputs = drive.finish(*embedded, *others)[:2]
    assert drive.stats.preemptions_total > 0
    for output in outputs:
        np.testing.assert_allclose(np.array(output.pooled) / len(PROMPTS[2]), alone, rtol=1e-3, atol=1e-4)
    drive.require_idle()


def test_an_embedding_has_length_1_and_the_dimensions_asked_for(open_llm: OpenLLM, tiny_llama: Path) -> None:
    llm = open_llm(tiny_llama)
    for dimensions in (None, 3):
        for vector in llm.embed(PROMPTS, dimensions=dimensions):
            assert np.linalg.norm(vector) == pytest.approx(1)
            assert dimensions is None or len(vector) == dimensions
    with pytest.raises(InvalidParameter, match="dimensions is 100000"):
        llm.embed("a", dimensions=100_000)


@pytest.mark.parametrize("fields", [{"pooling": "max"}, {"pooling": "mean", "n": 2}, {"pooling": "mean", "best_of": 2}])
def test_impossible_poolings_are_refused(open_llm: OpenLLM, tiny_llama: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="pooling"):
        open_llm(tiny_llama).generate("a", SamplingParams(**fields))
