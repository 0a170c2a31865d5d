"""Hundreds of requests of every kind on a device of static shapes say what they say on the CPU backend."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from pageport import SamplingParams, StructuredOutput
from pageport.backend.device import Device
from pageport.backend.reference.philox import gumbel, token_bits
from pageport.config import EngineConfig
from pageport.engine.builder import build_engine_on, open_model
from pageport.engine.engine import Engine
from pageport.engine.messages import EngineRequest
from pageport.errors import UnsupportedFeature
from pageport.sampling.pooling import Pooling
from pageport.sampling.seed import child_seed
from pageport.testing.conformance.engine_reference import TOLERANCES, EngineReference, Judge
from pageport.testing.conformance.tiny_engine import TinyEngine, TinyModel, request
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.static_device import StaticDevice
from pageport.testing.tiny_model import EOS
from pageport_cpu.plugin import CpuBackend

# So few blocks that requests are preempted; some of them fit into host memory, the others are computed again.
TIGHT = {
    "block_size": 16,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 40,
    "max_model_len": 96,
    "num_kv_blocks": 14,
    "swap_space": 24 / 2**20,  # six blocks
    "dtype": "float32",
    "kv_cache_dtype": "float32",
    "enable_prefix_caching": True,
}
FORM = StructuredOutput(regex="[0-9]{3}(-[a-z]{2})?")


class Planned(NamedTuple):
    """A request, the step before which it comes, and the one before which it is aborted, if it is."""

    request: EngineRequest
    arrives: int
    aborted: int | None = None


@dataclass
class Said:
    """One sequence's tokens, and how it ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None


Answers = dict[tuple[str, int], Said]

KINDS: Mapping[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.0),
    "forked": SamplingParams(temperature=2.0, n=3),
    "filtered": SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
    "scored": SamplingParams(temperature=0, logprobs=3),
    "penalised": SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "biased": SamplingParams(temperature=0.8, logit_bias={65: 3.0, 66: -4.0}, min_tokens=4),
    "structured": SamplingParams(temperature=1.0, structured=FORM),
    "of few tokens": SamplingParams(temperature=3.0, allowed_token_ids=list(range(40, 90))),
    "with a scored prompt": SamplingParams(temperature=0, prompt_logprobs=2),
}


def planned(count: int) -> list[Planned]:
    """Plan requests of every kind in turn; half begin alike, and every ninth is aborted."""
    generator = np.random.default_rng(17)
    shared = [generator.integers(0, 256, 33).tolist() for _ in range(3)]
    plan, step = [], 0
    for index in range(count):
        start = shared[index % 3] if generator.random() < 0.5 else []
        prompt = [*start, *generator.integers(0, 256, int(generator.integers(1, 30))).tolist()]
        params = list(KINDS.values())[index % len(KINDS)]
        request = EngineRequest(
            request_id=f"{index} {list(KINDS)[index % len(KINDS)]}",
            prompt_token_ids=prompt,
            sampling=params,
            max_tokens=int(generator.integers(1, 17)),
            seed=int(generator.integers(2**63)),
            stop_token_ids=frozenset({EOS}),
        )
        step += int(generator.integers(0, 4))
        plan.append(Planned(request, step, step + int(generator.integers(1, 12)) if index % 9 == 8 else None))
    return plan


@contextmanager
def engine_on(device: Device, folder: Path) -> Iterator[Engine]:
    config = EngineConfig.from_flat(model=str(folder), **TIGHT)
    built = build_engine_on(device, open_model(config.model), config, backend_name="under test")
    built.engine.compile(FORM)
    try:
        yield built.engine
    finally:
        built.engine.close()


def run(engine: Engine, plan: Sequence[Planned]) -> Answers:
    """Run a plan to its end, with the books checked after every step."""
    answers: Answers = {}
    waiting = list(plan)
    for step in range(20 * len(plan) + 100):
        while waiting and waiting[0].arrives <= step:
            engine.add(waiting.pop(0).request)
        for entry in plan:
            if entry.aborted == step:
                engine.abort(entry.request.request_id)
        for output in engine.step().outputs:
            said = answers.setdefault((output.request_id, output.index), Said())
            said.tokens += output.token_ids
            said.logprobs += [entry.logprobs[0] for entry in output.logprobs or ()]
            said.prompt_logprobs += [entry.logprobs[0] for entry in output.prompt_logprobs or () if entry is not None]
            said.finish_reason, said.error = output.finish_reason or said.finish_reason, output.error or said.error
        engine.check()
        if not waiting and not engine.has_work:
            return answers
    raise AssertionError("the engine still has work")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("static") / "tiny-llama"
    TinyModel().write(made)
    return made


@pytest.fixture(scope="module")
def reference() -> EngineReference:
    return EngineReference(TinyModel())


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_a_mixed_run_compiles_the_declared_buckets_alone_and_says_what_the_cpu_says(count, folder, reference):
    plan = planned(count)
    device = StaticDevice(token_buckets=(8, 24), request_buckets=(1, 4), context_buckets=(48, 96))
    with engine_on(device, folder) as engine:
        num_buckets = len(device.compilations)
        static = run(engine, plan)
        stats = engine.stats()
    (record,) = device.records
    assert num_buckets == len(device.compilations) == len(set(record.compiled)) == 8
    assert set(record.steps) == set(record.compiled)
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
    for counter in ("preemptions_total", "swapped_out_blocks_total", "prefix_hit_tokens_total", "copied_blocks_total"):
        assert getattr(stats, counter) > 0, f"{counter} is 0: the run has no power"
    cpu = CpuBackend().open(0, {"threads": "1"})
    with engine_on(cpu, folder) as engine:
        expected = run(engine, plan)
    cpu.close()
    assert_same(static, expected, plan, reference)


def assert_same(static: Answers, expected: Answers, plan: Sequence[Planned], reference: EngineReference) -> None:
    """Compare every sequence; one that was aborted as far as both go."""
    assert static.keys() == expected.keys()
    near_ties = 0
    for asked, _, aborted in plan:
        for index in range(asked.num_choices):
            ours, theirs = (answers.get((asked.request_id, index), Said()) for answers in (static, expected))
            assert (ours.error, theirs.error) == (None, None)
            length = min(len(ours.tokens), len(theirs.tokens))
            first = next((k for k in range(length) if ours.tokens[k] != theirs.tokens[k]), length)
            np.testing.assert_allclose(ours.logprobs[:first], theirs.logprobs[:first], atol=TOLERANCES["float32"])
            if aborted is None:
                np.testing.assert_allclose(ours.prompt_logprobs, theirs.prompt_logprobs, atol=TOLERANCES["float32"])
            if first < length:
                near_ties += 1
                tokens = ours.tokens[first], theirs.tokens[first]
                gap = score_gap(reference, asked, index, ours.tokens[:first], tokens)
                assert gap <= 2 * TOLERANCES["float32"], f"{asked.request_id}.{index} differs at token {first}"
            elif aborted is None:
                assert ours.finish_reason == theirs.finish_reason
                assert len(ours.tokens) == len(theirs.tokens)
    assert near_ties <= len(plan) / 50


def score_gap(
    reference: EngineReference, request: EngineRequest, index: int, before: Sequence[int], tokens: tuple[int, int]
) -> float:
    """Return how far two candidates are apart, in logits, when one of them is the next token.

    Of a request whose logits are edited, or cut off at an edge: infinitely far.
    """
    params = request.sampling
    if params not in (KINDS["greedy"], KINDS["sampled"], KINDS["forked"], KINDS["scored"]):
        return float("inf")
    scores = reference.logprobs(request.prompt_token_ids, [*before, 0])[-1].double()[list(tokens)]
    if params.temperature > 0:
        seed = torch.tensor([child_seed(request.seed, index)], dtype=torch.uint64).view(torch.int64)
        noise = gumbel(token_bits(seed, torch.tensor([len(before)]), torch.tensor([tokens])))[0]
        scores += params.temperature * noise
    return abs(float(scores[0] - scores[1]))


def test_every_kind_of_request_comes_in_a_short_run() -> None:
    plan = planned(40)
    assert {entry.request.request_id.partition(" ")[2] for entry in plan} == set(KINDS)
    assert sum(entry.aborted is not None for entry in plan) >= 3


PROMPTS = [list(range(length)) for length in (1, 5, 16, 17, 50)]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_those_of_a_device_that_runs_ops(pooling: Pooling) -> None:
    """Prompts in several steps, and in several programs a step."""
    sums = []
    for device in (StaticDevice(token_buckets=(8,), request_buckets=(4,)), ReferenceDevice()):
        found = {}
        with TinyEngine(device, TinyModel(), block_size=4, max_num_batched_tokens=40) as engine:
            for place, prompt in enumerate(PROMPTS):
                params = SamplingParams(temperature=0, pooling=pooling)
                engine.engine.add(
                    EngineRequest(request_id=f"{place}", prompt_token_ids=prompt, sampling=params, max_tokens=1, seed=0)
                )
            while engine.engine.has_work:
                found |= {output.request_id: output.pooled for output in engine.engine.step().outputs}
        sums.append([found[f"{place}"] for place in range(len(PROMPTS))])
    # Up to 50 states of about 1.
    for ours, theirs in zip(*sums, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


@pytest.mark.parametrize("depth", [1, pytest.param(3, marks=pytest.mark.full)])
def test_steps_in_flight_change_no_answer(depth: int, reference: EngineReference) -> None:
    judge = Judge(reference=reference, dtype="float32", block_size=4, where="llama", hint=f"{depth} steps in flight")
    with TinyEngine(StaticDevice(), TinyModel(), block_size=4, pipeline_depth=depth) as engine:
        requests = (
            request(f"{place}", prompt, n=1 + place % 2, temperature=float(place % 3), max_tokens=6)
            for place, prompt in enumerate(PROMPTS)
        )
        tally = judge.compare(engine.run(*requests).values())
        engine.engine.check()
    assert tally.tokens == 42


def test_sequences_may_fill_the_largest_context(reference: EngineReference) -> None:
    judge = Judge(reference=reference, dtype="float32", block_size=4, where="llama", hint="up to the last position")
    device = StaticDevice(context_buckets=(16, 40))
    with TinyEngine(device, TinyModel(), block_size=4, max_model_len=40) as engine:
        requests = (request(f"{length}", list(range(length)), max_tokens=40 - length) for length in (10, 39))
        tally = judge.compare(engine.run(*requests).values())
    assert tally.tokens == 31
    assert {bucket.context for bucket in device.records[0].steps} == {16, 40}


def test_contexts_beyond_the_largest_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="contexts of up to 40 tokens"):
        TinyEngine(StaticDevice(context_buckets=(16, 40)), TinyModel(), block_size=4, max_model_len=64)
