"""Engines on a device of compiled programs, and on one that does not mix prompts with decodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.capabilities import Capabilities
from pageport.backend.device import Device
from pageport.backend.program import Bucket
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs, StaticGraph
from pageport.errors import UnsupportedFeature
from pageport.sampling.params import SamplingParams
from pageport.testing.conformance.tiny_engine import Answer, TinyEngine, TinyModel, request
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.tiny_model import VOCAB_SIZE


class RecordingStaticDevice(ReferenceDevice):
    """Notes what is compiled and the shapes that run."""

    def __init__(self, **capabilities: Any) -> None:
        self.changes = {"token_buckets": (8, 32), "request_buckets": (1, 4), "context_buckets": (64, 256)}
        self.changes |= capabilities
        self.compiled: list[Bucket] = []
        self.steps: list[tuple[Bucket, GraphInputs]] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, static_shapes=True, **self.changes)

    def compile_graph(self, graph: StaticGraph, bucket: Bucket) -> StaticGraph:
        self.compiled.append(bucket)

        def run(inputs: GraphInputs) -> GraphOutputs:
            self.steps.append((bucket, inputs))
            return graph(inputs)

        return run


class SeparatingDevice(ReferenceDevice):
    """Notes whether a step had prompts, decodes or both."""

    def __init__(self) -> None:
        self.kinds: set[tuple[bool, bool]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, mixed_batches=False)

    def plan(self, spec: Any, batch: AttentionBatch) -> Any:
        self.kinds.add((batch.num_decodes > 0, batch.num_decodes < batch.num_requests))
        return super().plan(spec, batch)


def tokens_on(device: Device, model: TinyModel, lengths: Sequence[int] = (1, 5, 33, 70, 90, 15)) -> dict[Any, Any]:
    generator = np.random.default_rng(0)
    with TinyEngine(device, model, block_size=16) as engine:
        for i, length in enumerate(lengths):
            prompt = generator.integers(3, 60, length).tolist()
            # With and without what keeps a program from choosing: siblings, logprobs.
            temperature = 0.8 * (i % 2)
            mixed = request(f"{i}", prompt, max_tokens=20, n=1 + i % 3, temperature=temperature, prompt_logprobs=i % 2)
            plain = SamplingParams(temperature=temperature, top_k=20, top_p=0.9)
            engine.add(mixed, replace(mixed, request_id=f"plain {i}", sampling=plain))
        return {key: (answer.tokens, scores(answer)) for key, answer in engine.run().items()}


def scores(answer: Answer) -> list[float]:
    """Return each scored prompt token's largest logprob, as rounded as programs and ops may differ."""
    return [round(float(entry.nan_to_num(-99).max()), 3) for entry in answer.prompt_logprobs]


@pytest.mark.parametrize(
    "model",
    [TinyModel(), TinyModel(architecture="gpt2"), TinyModel(sliding_window=16)],
    ids=["llama", "gpt2", "mistral"],
)
def test_programs_say_what_ops_say(model: TinyModel) -> None:
    assert tokens_on(RecordingStaticDevice(), model) == tokens_on(ReferenceDevice(), model)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_programs_choose_the_tokens_themselves(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    def run(device: Device) -> list[list[int]]:
        sampling = SamplingParams(temperature=temperature, top_k=20, top_p=0.9)
        with TinyEngine(device, TinyModel(), block_size=16) as engine:
            for i in range(5):
                asked = request(f"{i}", range(3, 20 + i), max_tokens=4 + i, seed=i)
                engine.add(replace(asked, sampling=sampling))
            return [answer.tokens for answer in engine.run().values()]

    expected = run(ReferenceDevice())
    monkeypatch.setattr("pageport.engine.builder.choose_tokens", None)  # core may choose none
    assert run(RecordingStaticDevice()) == expected


def test_a_device_that_does_not_mix_gets_prompts_and_decodes_apart() -> None:
    device = SeparatingDevice()
    assert tokens_on(device, TinyModel()) == tokens_on(ReferenceDevice(), TinyModel())
    assert device.kinds == {(True, False), (False, True)}


def test_every_bucket_is_compiled_once_before_the_first_step_and_no_other_shape_runs() -> None:
    device = RecordingStaticDevice()
    tokens_on(device, TinyModel())
    assert len(device.compiled) == len(set(device.compiled)) == 8
    for bucket, inputs in device.steps:
        assert bucket in device.compiled
        assert len(inputs.token_ids) == len(inputs.positions) == len(inputs.slot_mappings[0]) == bucket.tokens
        assert len(inputs.seq_lens) == len(inputs.last_tokens) == bucket.requests
        assert inputs.block_tables[0].shape == (bucket.requests, bucket.context // 16)


def test_what_fills_a_step_up_is_null() -> None:
    device = RecordingStaticDevice(request_buckets=(4,), token_buckets=(32,))
    tokens_on(device, TinyModel(), (5, 20))
    for _bucket, inputs in device.steps:
        num_tokens = int((inputs.slot_mappings[0] >= 0).sum())
        assert (inputs.slot_mappings[0][num_tokens:] == -1).all()
        assert not inputs.token_ids[num_tokens:].any() and not inputs.positions[num_tokens:].any()
        for table, length in zip(inputs.block_tables[0], inputs.seq_lens.tolist(), strict=True):
            used = -(-length // 16)
            assert (table[:used] >= 0).all() and (table[used:] == -1).all()


def test_a_long_prompt_is_scored_by_one_product_a_step() -> None:
    class CountingDevice(RecordingStaticDevice):
        heads = 0

        def linear(self, weight: Any, x: Tensor, bias: Any = None, out: Any = None) -> Tensor:
            self.heads += len(x) == 512 and weight.dense.shape[0] == VOCAB_SIZE
            return super().linear(weight, x, bias, out)

    device = CountingDevice(token_buckets=(512,), context_buckets=(600,))
    with TinyEngine(device, TinyModel(max_positions=600), block_size=16, max_num_batched_tokens=512) as engine:
        answers = engine.run(request("long", [7] * 511, max_tokens=1, prompt_logprobs=1))
    assert len(answers["long", 0].prompt_logprobs) == 510
    assert device.heads == 1


def test_more_decodes_and_longer_prompts_than_fit_take_several_steps() -> None:
    device = RecordingStaticDevice(request_buckets=(2,), token_buckets=(8,))
    assert tokens_on(device, TinyModel()) == tokens_on(ReferenceDevice(), TinyModel())
    assert {bucket[:2] for bucket, _ in device.steps} == {(2, 2), (1, 8)}


def test_a_context_longer_than_every_bucket_is_cut_or_refused() -> None:
    device = RecordingStaticDevice(context_buckets=(64,))
    with pytest.raises(UnsupportedFeature, match="up to 64 tokens"):
        TinyEngine(device, TinyModel(), block_size=16)
    with TinyEngine(device, TinyModel(), block_size=16, max_model_len=None) as engine:
        answers = engine.run(request("long", range(3, 60), max_tokens=99))
    assert len(answers["long", 0].tokens) == 7


def test_a_decoder_that_needs_a_newer_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from pageport.engine import build_forward

    describe = build_forward.describe_decoder
    monkeypatch.setattr(
        build_forward, "describe_decoder", lambda *args, **kw: replace(describe(*args, **kw), version=2)
    )
    with pytest.raises(UnsupportedFeature, match="version 1; this one needs 2"):
        TinyEngine(RecordingStaticDevice(), TinyModel(), block_size=16)
