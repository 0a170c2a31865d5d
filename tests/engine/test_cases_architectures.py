"""Every architecture through the whole engine: chunks, cached prefixes and neighbours change nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pageport import LLM, RequestOutput, SamplingParams
from pageport.engine.outputs import CompletionOutput

from .variants import VARIANTS, WINDOWED, write_variant

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
SETTINGS = {"dtype": "float32", "max_model_len": 160}
# Windows are 16 or 24 tokens: the prompt is far longer, and so is the output.
NUM_PROMPT, NUM_OUTPUT = 70, 28
FIRST = [(7 * i) % 250 for i in range(NUM_PROMPT)]
SECOND = [*FIRST[:40], *range(100, 109)]
SHORT = [5, 6, 7, 8, 9]
SCORED = [(3 * i) % 240 for i in range(33)]
# Float32 sums in another order; log probabilities here are of order 1 to 30.
TOLERANCE = 2e-4


@dataclass
class Variant:
    """A tiny model on disk, and transformers' own of the same weights."""

    folder: Path
    reference: Any

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([list(token_ids)])).logits[0]
        return logits.log_softmax(-1)


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tmp_path_factory.mktemp("variants") / request.param
    return Variant(folder, write_variant(request.param, folder))


@dataclass
class Answers:
    """What the four requests of every test got."""

    first: RequestOutput
    second: RequestOutput
    short: RequestOutput
    scored: RequestOutput

    @property
    def choices(self) -> list[CompletionOutput]:
        outputs = (self.first, self.second, self.short, self.scored)
        return [choice for output in outputs for choice in output.outputs]


def params(max_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=0, **more)


def ask_one_by_one(llm: LLM) -> Answers:
    requests = [(FIRST, params(NUM_OUTPUT)), (SECOND, params(n=2)), (SHORT, params(12)), (SCORED, scoring())]
    return Answers(*(llm.generate([prompt], asked, use_tqdm=False)[0] for prompt, asked in requests))


def ask_together(llm: LLM) -> Answers:
    """The first alone; then, while a short one decodes, one that resumes from its blocks and one that scores."""
    (first,) = llm.generate([FIRST], params(NUM_OUTPUT), use_tqdm=False)
    others = llm.generate([SHORT, SECOND, SCORED], [params(12), params(n=2), scoring()], use_tqdm=False)
    return Answers(first, others[1], others[0], others[2])


def scoring() -> SamplingParams:
    return params(prompt_logprobs=0)


_EXPECTED: dict[Path, Answers] = {}


@pytest.fixture
def expected(variant: Variant, open_llm: OpenLLM) -> Answers:
    """The requests one by one, whole prompts in one step, nothing cached."""
    if variant.folder not in _EXPECTED:
        llm = open_llm(variant.folder, max_num_batched_tokens=512, enable_prefix_caching=False, **SETTINGS)
        _EXPECTED[variant.folder] = ask_one_by_one(llm)
    return _EXPECTED[variant.folder]


def require_same(answers: Answers, expected: Answers) -> None:
    for ours, theirs in zip(answers.choices, expected.choices, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert chosen(ours) == pytest.approx(chosen(theirs), abs=TOLERANCE)
    assert scores(answers.scored) == pytest.approx(scores(expected.scored), abs=TOLERANCE)


def chosen(choice: CompletionOutput) -> list[float]:
    assert choice.logprobs is not None
    return [entry[token].logprob for entry, token in zip(choice.logprobs, choice.token_ids, strict=True)]


def scores(output: RequestOutput) -> list[float]:
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    return [
        entry[token].logprob
        for entry, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
        if entry is not None
    ]


def test_tokens_and_logprobs_are_transformers_own(variant: Variant, expected: Answers) -> None:
    """KVC-09: what chunked and cached runs are compared with, far past every window."""
    logprobs = variant.logprobs(FIRST + expected.first.outputs[0].token_ids)[NUM_PROMPT - 1 : -1]
    assert expected.first.outputs[0].token_ids == logprobs.argmax(-1).tolist()
    assert chosen(expected.first.outputs[0]) == pytest.approx(logprobs.max(-1).values.tolist(), abs=TOLERANCE)
    prompt = variant.logprobs(SCORED)[:-1]
    own = prompt[range(len(SCORED) - 1), SCORED[1:]].tolist()
    assert scores(expected.scored) == pytest.approx(own, abs=TOLERANCE)


def _full(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.mark.parametrize("budget", [2, 17, *_full(1, 7, 15, 16, 33, 512)])
def test_chunks_cached_prefixes_and_neighbours_change_nothing(
    variant: Variant, expected: Answers, open_llm: OpenLLM, budget: int
) -> None:
    """KVC-05, KVC-08, KVC-09: chunks, a resumed prefix, decodes beside prefills, n = 2 and prompt logprobs."""
    llm = open_llm(variant.folder, max_num_batched_tokens=budget, **SETTINGS)
    answers = ask_together(llm)
    require_same(answers, expected)
    assert answers.second.num_cached_tokens == 32
    assert answers.scored.num_cached_tokens == 0
    llm._engine.check()
    assert llm.stats().kv_blocks_used == 0


@pytest.mark.full
@pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"block_size": 32}, {"pipeline_depth": 1}])
@pytest.mark.parametrize("budget", [7, 16, 33])
def test_other_caches_and_steps_in_flight_change_nothing(
    variant: Variant, expected: Answers, open_llm: OpenLLM, budget: int, settings: dict[str, Any]
) -> None:
    """KVC-08, KVC-09."""
    llm = open_llm(variant.folder, max_num_batched_tokens=budget, **SETTINGS, **settings)
    require_same(ask_together(llm), expected)
    llm._engine.check()


def test_every_windowed_architecture_is_among_them() -> None:
    """KVC-08."""
    assert set(WINDOWED) < set(VARIANTS)
