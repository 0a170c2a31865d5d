"""The demo model against transformers on the same dequantised weights.

`make test` runs a few short prompts; the whole of it runs in `make test-all`.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from pageport import LLM, BeamSearchParams, SamplingParams
from pageport.models.resolve import resolve_model

_spec = importlib.util.spec_from_file_location("smollm2_prompts", Path(__file__).with_name("smollm2_prompts.py"))
assert _spec is not None and _spec.loader is not None
smollm2_prompts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(smollm2_prompts)

pytestmark = [pytest.mark.smollm2, pytest.mark.timeout(3600)]
SETTINGS = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 20, "num_kv_blocks": 2000}


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    path = resolve_model("smollm2", None)
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def greedy(prompts: list[list[int]], max_tokens: int, one_by_one: bool = False, **settings: object) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    with LLM("smollm2", **{**SETTINGS, **settings}) as llm:
        calls = [[prompt] for prompt in prompts] if one_by_one else [prompts]
        outputs = [output for call in calls for output in llm.generate(call, params, use_tqdm=False)]
        llm._engine.check()
        assert llm.stats().kv_blocks_used == 0
        return [output.outputs[0].token_ids for output in outputs]


def wrong_tokens(model: torch.nn.Module, prompt: list[int], output: list[int]) -> tuple[int, int]:
    """Return how many of our tokens are not the reference's argmax: clearly, and within a gap of 1e-4."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    gaps = logits.max(dim=-1).values - logits[torch.arange(len(output)), torch.tensor(output)]
    return int((gaps >= 1e-4).sum()), int(((gaps > 0) & (gaps < 1e-4)).sum())


def prompt_ids(count: int | None = None) -> list[list[int]]:
    from pageport.text.tokenizer import load_tokenizer

    return smollm2_prompts.prompts(load_tokenizer(resolve_model("smollm2", None)))[:count]


def check(model: torch.nn.Module, prompts: list[list[int]], outputs: list[list[int]]) -> None:
    counts = [wrong_tokens(model, p, o) for p, o in zip(prompts, outputs, strict=True)]
    clearly, nearly = (sum(column) for column in zip(*counts, strict=True))
    print(f"{len(prompts)} prompts: {clearly} tokens off, {nearly} within a gap of 1e-4")
    assert clearly == 0
    assert nearly <= 3


def test_greedy_tokens_are_transformers_argmax_on_short_prompts(reference: torch.nn.Module) -> None:
    prompts = prompt_ids(12)
    check(reference, prompts, greedy(prompts, 16))


@pytest.mark.full
def test_greedy_tokens_are_transformers_argmax_whatever_the_engine_settings(reference: torch.nn.Module) -> None:
    prompts = prompt_ids()
    expected = greedy(prompts, 128)
    check(reference, prompts, expected)
    variants = {
        "alone": {"one_by_one": True},
        "chunks of 32": {"max_num_batched_tokens": 32},
        "preempted by recompute": {"num_kv_blocks": 64},
        "preempted by swap": {"num_kv_blocks": 64, "swap_space": 2.0},
        "no prefix caching": {"enable_prefix_caching": False},
        "pipeline depth 1": {"pipeline_depth": 1},
    }
    for name, settings in variants.items():
        assert greedy(prompts, 128, **settings) == expected, name


@pytest.mark.full
def test_beam_search_returns_transformers_beams(reference: torch.nn.Module) -> None:
    prompt = prompt_ids()[9]
    with torch.inference_mode():
        beams = reference.generate(
            torch.tensor([prompt]),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=24,
            do_sample=False,
            early_stopping=False,
            length_penalty=1.0,
            pad_token_id=0,
        )
    with LLM("smollm2", **SETTINGS) as llm:
        output = llm.beam_search([prompt], BeamSearchParams(beam_width=4, max_tokens=24))[0]
        assert llm.stats().kv_blocks_used == 0
    ours = [choice.token_ids for choice in output.outputs]
    theirs = [row.tolist()[len(prompt) :] for row in beams]
    assert ours == [t[: len(o)] for o, t in zip(ours, theirs, strict=True)]
