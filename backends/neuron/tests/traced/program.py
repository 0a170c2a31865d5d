"""Engines on the simulated device answer as on the CPU, with one graph for each bucket and none made later."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from pageport.backend.device import Device
from pageport.backend.program import Bucket, ProgramStep
from pageport.config import ModelConfig
from pageport.engine.builder import open_model
from pageport.engine.messages import EngineRequest
from pageport.errors import BackendError
from pageport.models.description import describe_decoder
from pageport.models.rope import rope_tables
from pageport.models.spec import cache_groups
from pageport.models.weights import load_decoder_weights
from pageport.sampling.params import SamplingParams
from pageport.testing.conformance.tiny_engine import TinyEngine, TinyModel
from pageport_cpu.plugin import CpuBackend
from pageport_neuron.plugin import NeuronBackend

from .. import fake_torch_neuronx

PROMPT = Bucket(1, 32, 128)
BUCKETS = {"token_buckets": "32", "request_buckets": "4", "context_buckets": "128"}
SETTINGS: dict[str, Any] = {"block_size": 16, "dtype": "float32", "max_num_seqs": 4, "max_model_len": 128}
DRAWN = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.2, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 0.8, "n": 2},
]


def requests(count: int = 5) -> list[EngineRequest]:
    """Return prompts of 3 … 59 tokens, longer than a bucket too, every one drawn in another way."""
    return [
        EngineRequest(
            request_id=f"r{number}",
            prompt_token_ids=[(7 * number + 3 * index) % 250 for index in range(3 + 14 * (number % 5))],
            sampling=SamplingParams(**DRAWN[number % len(DRAWN)]),
            max_tokens=6,
            seed=number,
        )
        for number in range(count)
    ]


def tokens(device: Device, model: TinyModel, asked: Sequence[EngineRequest], **settings: Any) -> dict[Any, list[int]]:
    with TinyEngine(device, model, **{**SETTINGS, **settings}) as engine:
        return {key: answer.tokens for key, answer in engine.run(*asked).items()}


@pytest.fixture(scope="module")
def simulated():
    return NeuronBackend().simulate(BUCKETS)


def test_tokens_are_those_of_the_cpu_greedy_and_drawn(simulated):
    model = TinyModel(max_positions=128)
    assert tokens(simulated, model, requests()) == tokens(CpuBackend().open(0, {}), model, requests())


def test_each_bucket_is_compiled_once_for_all_engines_of_its_shapes(simulated):
    model = TinyModel(max_positions=128)
    tokens(simulated, model, requests(2))
    tokens(simulated, model, requests(2))
    assert [done.bucket for done in simulated.compilations] == [Bucket(4, 4, 128), PROMPT]


def test_nothing_is_compiled_after_the_engine_is_built(simulated):
    with TinyEngine(simulated, TinyModel(max_positions=128), **SETTINGS) as engine:
        compiled = len(simulated.compilations)
        engine.run(*requests(5))
    assert len(simulated.compilations) == compiled


@pytest.fixture
def program(simulated, tmp_path):
    """A program with one bucket, of one prompt."""
    model = TinyModel(max_positions=128)
    model.write(tmp_path)
    checkpoint, spec = open_model(ModelConfig(model=str(tmp_path)))
    kv = cache_groups(spec)[0].kv_spec(16, "float32")
    weights = replace(
        load_decoder_weights(spec, checkpoint, simulated, "float32"),
        rope_tables=rope_tables(spec.ropes, 128, simulated.torch_device),
    )
    description = describe_decoder(spec, [kv], compute_dtype="float32", max_model_len=128)
    program = simulated.build_model(description, weights, [simulated.allocate_kv(kv, 64)], [PROMPT])
    program.compile(PROMPT)
    return program


def step(bucket: Bucket, num_tokens: int) -> ProgramStep:
    return ProgramStep(
        bucket=bucket,
        token_ids=torch.arange(num_tokens),
        positions=torch.arange(num_tokens),
        seq_lens=torch.tensor([num_tokens], dtype=torch.int32),
        last_tokens=torch.tensor([num_tokens - 1]),
        block_tables=(torch.arange(8, dtype=torch.int32)[None],),
        slot_mappings=(torch.arange(num_tokens),),
    )


def test_a_step_of_a_bucket_that_was_not_compiled_is_refused(program):
    with pytest.raises(BackendError, match="was not compiled before the first step"):
        program.step(step(Bucket(1, 16, 128), 16))


def test_a_step_that_has_not_its_buckets_shape_is_refused(program):
    assert program.step(step(PROMPT, 32)).logits().shape == (1, 259)
    with pytest.raises(BackendError, match=r"has int64 \[31\] where int64 \[32\] was compiled"):
        program.step(step(PROMPT, 31))


@pytest.mark.full
def test_the_vendors_compiler_gets_one_graph_a_bucket_without_a_device(monkeypatch, tmp_path):
    for name in ("TORCH_NEURONX_COMPILE_ONLY", "TORCH_NEURONX_NEFF_CACHE_DIR", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.setenv(name, "")
    with fake_torch_neuronx.installed() as vendor:
        device = NeuronBackend().open_compiler({**BUCKETS, "cache_dir": str(tmp_path)})
        TinyEngine(device, TinyModel(max_positions=128), **SETTINGS).close()
    assert vendor.backend.num_graphs == 2
    assert [(done.bucket, done.num_ops) for done in device.compilations] == [(Bucket(4, 4, 128), None), (PROMPT, None)]


@pytest.mark.full
@pytest.mark.parametrize("sampling", ["host", "device"])
@pytest.mark.parametrize(
    "model",
    [
        TinyModel(max_positions=128),
        TinyModel(architecture="gpt2", max_positions=128),
        TinyModel(max_positions=128, sliding_window=24),
    ],
    ids=["llama", "gpt2", "window"],
)
def test_every_tiny_model_answers_as_on_the_cpu(model, sampling):
    device = NeuronBackend().simulate({**BUCKETS, "context_buckets": "64,128", "sampling": sampling})
    # A cache so small that requests are preempted, and shared prefixes.
    settings = {"num_kv_blocks": 14, "enable_prefix_caching": True}
    asked = requests(40)
    assert tokens(device, model, asked, **settings) == tokens(CpuBackend().open(0, {}), model, asked, **settings)
    assert len(device.compilations) == 4
