"""Programs against core's plain-torch program, and what they compile."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import pytest
import torch
from pageport_tpu.device import TpuDevice, open_device
from tiny_decoders import DECODERS, DECODES, NUM_BLOCKS, PROMPT, random_weights, steps

from pageport.backend import DecoderDescription
from pageport.backend.device import Device
from pageport.backend.program import ModelProgram
from pageport.errors import UnsupportedFeature
from pageport.testing.reference_device import ReferenceDevice


@pytest.fixture
def device() -> Iterator[TpuDevice]:
    opened = open_device(0, "cpu")
    yield opened
    opened.close()


def poisoned_pool(device: Device, spec: Any) -> Any:
    pool = device.allocate_kv(spec, NUM_BLOCKS)
    # Bytes of ones are NaN in every floating-point dtype.
    poison = torch.full((NUM_BLOCKS, device.bytes_per_block(spec)), 255, dtype=torch.uint8)
    device.import_blocks(pool, range(NUM_BLOCKS), poison)
    return pool


def build(device: Device, description: DecoderDescription) -> ModelProgram:
    pools = [poisoned_pool(device, spec) for spec in description.cache_groups]
    program = device.build_model(description, random_weights(device, description), pools, [PROMPT, DECODES])
    for bucket in (PROMPT, DECODES):
        program.compile(bucket)
    return program


class RoundingDevice(ReferenceDevice):
    """The reference in bfloat16, too."""

    @property
    def capabilities(self) -> Any:
        dtypes = ("float32", "bfloat16")
        return replace(super().capabilities, compute_dtypes=dtypes, kv_dtypes=dtypes)


def differences(device: TpuDevice, description: DecoderDescription) -> Iterator[float]:
    ours, theirs = build(device, description), build(RoundingDevice(), description)
    for step, num_tokens, num_requests in steps(len(description.cache_groups)):
        output, expected = ours.step(step), theirs.step(step)
        for name, count in (("hidden", num_tokens), ("logits", num_requests)):
            found, wanted = (getattr(side, name)()[:count] for side in (output, expected))
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            yield float((found.float() - wanted.float()).abs().max())


@pytest.mark.parametrize("name", DECODERS)
def test_program_computes_what_the_plain_torch_program_does(device: TpuDevice, name: str) -> None:
    # Sums in another order; hidden states and logits are of order 1 to 10.
    assert max(differences(device, DECODERS[name])) < 1e-4


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_bfloat16_program_is_as_near_as_its_rounding(device: TpuDevice, name: str) -> None:
    description = DECODERS[name]
    groups = tuple(replace(spec, dtype="bfloat16") for spec in description.cache_groups)
    rounded = replace(description, compute_dtype="bfloat16", cache_groups=groups)
    found = list(differences(device, rounded))
    # Some roundings to 8 bits of numbers of order 1 to 10; that they are rounded shows.
    assert 1e-4 < max(found) < 0.2


def test_output_stays_as_it_was_when_later_steps_run(device: TpuDevice) -> None:
    program = build(device, DECODERS["llama"])
    sequence = [step for step, _, _ in steps(1)]
    outputs = [program.step(step) for step in sequence]
    again = build(device, DECODERS["llama"])
    for output, step in zip(outputs, sequence, strict=True):
        assert torch.equal(output.logits(), again.step(step).logits())


def compilations(run: Callable[[], object]) -> int:
    counted = 0

    def count(event: str, _seconds: float, **_details: object) -> None:
        nonlocal counted
        counted += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        run()
    finally:
        jax.monitoring.clear_event_listeners()
    return counted


def test_steps_compile_nothing(device: TpuDevice) -> None:
    program = build(device, DECODERS["gemma"])
    assert compilations(lambda: [program.step(step).logits() for step, _, _ in steps(2)]) == 0
    assert compilations(lambda: build(device, DECODERS["parallel"])) >= 2, "the count sees no compilation"


def test_equal_decoders_share_their_compiled_steps(device: TpuDevice) -> None:
    for name in ("llama", "llama", "plain silu"):
        build(device, DECODERS[name]).close()
    assert [compilation.bucket for compilation in device.compilations] == 2 * [PROMPT, DECODES]


def test_weights_used_twice_are_handed_over_once(device: TpuDevice) -> None:
    before = device.memory().reserved_by_this_process
    program = device.build_model(DECODERS["llama"], weights := random_weights(device, DECODERS["llama"]), [], [])
    layers = [(layer.qkv, layer.output, layer.up, layer.down) for layer in weights.layers]
    matrices = weights.embedding.dense.nbytes + sum(p.weight.dense.nbytes for layer in layers for p in layer)
    taken = device.memory().reserved_by_this_process - before
    assert matrices <= taken < matrices + weights.embedding.dense.nbytes
    program.close()


def test_newer_description_is_refused(device: TpuDevice) -> None:
    newer = replace(DECODERS["llama"], version=2)
    with pytest.raises(UnsupportedFeature, match="Upgrade pageport-tpu"):
        device.build_model(newer, random_weights(device, newer), [], [])
