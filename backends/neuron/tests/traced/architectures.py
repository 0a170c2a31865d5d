"""Every architecture becomes one graph a bucket of allowed ops, and answers greedily as on the CPU."""

from pathlib import Path

import pytest
from tests.engine.variants import VARIANTS, write_variant

from pageport.backend.device import Device
from pageport.config import EngineConfig
from pageport.engine.builder import build_engine_on, open_model
from pageport.engine.messages import EngineRequest
from pageport.sampling.params import SamplingParams
from pageport_cpu.plugin import CpuBackend
from pageport_neuron.plugin import NeuronBackend

SETTINGS = {"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_kv_blocks": 32, "max_model_len": 64}


def tokens(device: Device, folder: Path) -> dict[str, list[int]]:
    config = EngineConfig.from_flat(model=str(folder), dtype="float32", **SETTINGS)
    engine = build_engine_on(device, open_model(config.model), config, backend_name="under test").engine
    for number in range(4):
        engine.add(
            EngineRequest(
                request_id=str(number),
                prompt_token_ids=[(5 * number + 3 * index) % 250 for index in range(4 + 12 * number)],
                sampling=SamplingParams(temperature=0.0),
                max_tokens=8,
                seed=0,
            )
        )
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            answers.setdefault(output.request_id, []).extend(output.token_ids)
    engine.close()
    return answers


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_the_cpu(variant, tmp_path):
    write_variant(variant, tmp_path)
    device = NeuronBackend().simulate({"token_buckets": "32", "request_buckets": "4"})
    assert tokens(device, tmp_path) == tokens(CpuBackend().open(0, {}), tmp_path)
    assert len(device.compilations) == 2
