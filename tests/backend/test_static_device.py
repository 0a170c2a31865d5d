"""The simulated device of static shapes: what it takes, what it refuses, and what it counts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from pageport.backend.program import Bucket
from pageport.backend.reference import static_decoder
from pageport.config import ModelConfig
from pageport.engine.builder import OpenModel, open_model
from pageport.errors import BackendError
from pageport.testing.conformance.program_scene import ProgramRow, ProgramScene
from pageport.testing.static_device import StaticDevice
from pageport.testing.tiny_model import write_tiny_llama

from .conftest import kv_spec

CONTEXT, BLOCK = 32, 4
PROMPT, DECODES = Bucket(1, 16, CONTEXT), Bucket(4, 4, CONTEXT)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> OpenModel:
    folder = write_tiny_llama(tmp_path_factory.mktemp("llama"), num_hidden_layers=1, head_dim=8)
    return open_model(ModelConfig(model=str(folder)))


def open_scene(device, model, buckets=(DECODES, PROMPT)):
    return ProgramScene(
        device,
        model,
        buckets,
        dtype="float32",
        kv_dtype="float32",
        block_size=BLOCK,
        num_blocks=12,
        generator=np.random.default_rng(0),
    )


@pytest.fixture
def device() -> StaticDevice:
    return StaticDevice(token_buckets=(16,), request_buckets=(4,))


@pytest.fixture
def scene(device, model) -> Iterator[ProgramScene]:
    with open_scene(device, model) as opened:
        yield opened


def prompt(*tokens: int, block: int = 1) -> ProgramRow:
    """Return a prompt of up to eight tokens in two blocks that follow each other."""
    return ProgramRow(tokens, 0, [[block, block + 1]])


def decode(token: int, start: int, block: int = 1) -> ProgramRow:
    return ProgramRow([token], start, [[block, block + 1]])


def within(monkeypatch, extra):
    """Let the program's graph do something more with its logits' inputs."""
    plain = static_decoder.choose_statically

    def chosen(logits, choice):
        extra(logits)
        return plain(logits, choice)

    monkeypatch.setattr(static_decoder, "choose_statically", chosen)


def test_steps_of_compiled_buckets_run_and_are_counted(device, scene):
    output = scene.run(PROMPT, [prompt(5, 6, 7, 8, 9)])
    scene.run(DECODES, [decode(4, 5)])
    scene.run(DECODES, [decode(4, 6), decode(2, 0, block=7)])
    assert output.logits().shape == (1, 259)
    assert output.hidden().shape == (16, 48)
    (record,) = device.records
    assert (len(device.compilations), dict(record.steps)) == (2, {PROMPT: 1, DECODES: 2})


def test_a_request_is_computed_alike_in_any_bucket_and_beside_any_other(model):
    device = StaticDevice(token_buckets=(8, 16), request_buckets=(1, 4))
    logits = []
    for prompts, decodes in ((Bucket(1, 8, CONTEXT), Bucket(1, 1, CONTEXT)), (PROMPT, DECODES)):
        others = [] if decodes.requests == 1 else [decode(9, 0, block=7), decode(9, 0, block=9)]
        with open_scene(device, model, [prompts, decodes]) as scene:
            scene.run(prompts, [prompt(5, 6, 7, 8, 9)])
            logits.append(scene.run(decodes, [decode(4, 5), *others]).logits()[0])
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=1e-5)


def test_outputs_stay_what_they_are_when_later_steps_run(scene):
    first = scene.run(PROMPT, [prompt(5, 6, 7)])
    before = first.logits().clone(), first.hidden().clone()
    scene.run(PROMPT, [prompt(9, 9, 9, 9, block=5)])
    assert torch.equal(first.logits(), before[0])
    assert torch.equal(first.hidden()[:3], before[1][:3])


@pytest.mark.parametrize(
    ("buckets", "words"),
    [
        ([Bucket(1, 17, CONTEXT)], "none of the shapes that the device declares"),
        ([Bucket(3, 3, CONTEXT)], "none of the shapes that the device declares"),
        ([Bucket(4, 16, CONTEXT)], "neither one prompt nor requests with one token each"),
        ([Bucket(1, 16, CONTEXT + 1)], "not made of whole blocks"),
    ],
)
def test_shapes_that_were_not_declared_are_refused_when_a_model_is_built(scene, buckets, words):
    with pytest.raises(BackendError, match=words):
        scene.build(buckets)


def test_contexts_are_the_declared_ones_in_whole_blocks(model):
    device = StaticDevice(token_buckets=(16,), context_buckets=(10, 30))
    with open_scene(device, model, [Bucket(1, 16, 12), PROMPT]) as scene, pytest.raises(BackendError, match="28"):
        scene.build([Bucket(1, 16, 28)])


def test_nothing_is_compiled_late(device, scene):
    program = scene.build([DECODES, PROMPT])
    program.compile(PROMPT)
    with pytest.raises(BackendError, match="which was not compiled"):
        program.step(scene.step(DECODES, [decode(4, 0)]))
    with pytest.raises(BackendError, match="but the model was built for"):
        program.compile(Bucket(1, 1, CONTEXT))
    program.step(scene.step(PROMPT, [prompt(5)]))
    with pytest.raises(BackendError, match="after the first step"):
        program.compile(DECODES)
    assert device.records[-1].compiled == [PROMPT]


def test_compiling_twice_is_told_twice(device, scene):
    scene.program.compile(PROMPT)
    assert [compilation.bucket for compilation in device.compilations] == [DECODES, PROMPT, PROMPT]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bucket": DECODES}, r"token_ids .* is torch.int64 \[16\]; the bucket takes torch.int64 \[4\]"),
        ({"block_tables": (torch.zeros((1, 2), dtype=torch.int32),)}, r"block_tables\[0\] .* \[1, 8\]"),
        ({"block_tables": ()}, "0 block_tables for 1 cache groups"),
        ({"slot_mappings": ()}, "0 slot_mappings for 1 cache groups"),
        ({"last_tokens": torch.tensor([16])}, "last_tokens .* are 16 … 16; 0 … 15 is possible"),
        ({"last_tokens": torch.tensor([3])}, "last_tokens .* name padding"),
        ({"seq_lens": torch.tensor([0], dtype=torch.int32)}, "nothing but padding"),
        ({"token_ids": torch.ones(16, dtype=torch.int64)}, "not 0 at position 0"),
        ({"slot_mappings": (torch.tensor([4, -1, 6, *[-1] * 13]),)}, "2 tokens have one"),
        ({"slot_mappings": (torch.tensor([4, 5, 48, *[-1] * 13]),)}, "-1 … 47 is possible"),
    ],
)
def test_a_step_that_is_not_of_its_bucket_is_refused_by_name(scene, changes, words):
    step = scene.step(PROMPT, [prompt(5, 6, 7)])
    with pytest.raises(BackendError, match=words):
        scene.program.step(replace(step, **changes))


def test_padding_among_requests_is_refused(scene):
    step = scene.step(DECODES, [decode(4, 2), decode(2, 0, block=7)])
    with pytest.raises(BackendError, match="padding stands behind"):
        scene.program.step(replace(step, seq_lens=torch.tensor([3, 0, 1, 0], dtype=torch.int32)))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (lambda x: x.nonzero(), "aten.nonzero .* shape depends on data"),
        (lambda x: x[x > 0], "aten.index .* shape depends on data"),
        (lambda x: torch.masked_select(x, x > 0), "aten.masked_select .* shape depends on data"),
        (lambda x: torch.where(x > 0), "aten.where .* shape depends on data"),
        (lambda x: x.unique(), "aten._unique2 .* shape depends on data"),
        (lambda x: x.index_put_((x > 0,), x.sum()), "aten.index_put_ .* shape depends on data"),
        (lambda x: x[0, 0].item(), r"item\(\) .* reads from it"),
        (lambda x: int(x[0, 0]), r"__int__\(\) .* reads from it"),
        (lambda x: bool(x[0, 0] > 0), r"__bool__\(\) .* reads from it"),
        (lambda x: x.tolist(), r"tolist\(\) .* reads from it"),
        (lambda x: x.numpy(), r"numpy\(\) .* reads from it"),
        (lambda x: x.cpu(), r"cpu\(\) .* reads from it"),
        (lambda x: x.data_ptr(), r"data_ptr\(\) .* reads from it"),
        (lambda x: torch.equal(x, x), r"equal\(\) .* reads from it"),
        (lambda x: torch.ops.aten._local_scalar_dense(x[0, 0]), "aten._local_scalar_dense .* reads from it"),
        (lambda x: torch.linalg.norm(x), "aten.linalg_norm .* not among the ops that may be compiled"),
        (lambda x: torch.tensor([1.0]), "aten.lift_fresh .* not among the ops that may be compiled"),
    ],
)
def test_what_a_compiled_graph_could_not_do_is_refused_by_name(scene, monkeypatch, extra, words):
    within(monkeypatch, extra)
    with pytest.raises(BackendError, match=words.replace(".*", "in a step of Bucket.*, tokens=16,.*")):
        scene.run(PROMPT, [prompt(5, 6, 7)])


def test_a_branch_of_python_that_looks_at_the_batch_is_refused(scene, monkeypatch):
    turns = iter((1.0, 1.0, 2.0))
    within(monkeypatch, lambda x: x * next(turns))
    scene.run(PROMPT, [prompt(5, 6, 7)])
    scene.run(PROMPT, [prompt(5, 6)])
    with pytest.raises(BackendError, match=r"aten.mul .* Python looked at the batch"):
        scene.run(PROMPT, [prompt(5, 6, 7)])


def test_a_step_of_more_ops_than_the_first_one_is_refused(scene, monkeypatch):
    turns = iter((False, True))
    within(monkeypatch, lambda x: x * 2 if next(turns) else x)
    scene.run(PROMPT, [prompt(5, 6, 7)])
    with pytest.raises(BackendError, match="Python looked at the batch"):
        scene.run(PROMPT, [prompt(5, 6, 7)])


def test_fresh_blocks_hold_nan(device):
    pool = device.allocate_kv(kv_spec(), 3)
    assert pool.key.isnan().all()
    assert pool.value.isnan().all()
    assert device.allocate_kv(kv_spec(dtype="int8"), 3).key_scale.isnan().all()


def test_memory_tells_what_pools_take(device):
    before = device.memory()
    spec = kv_spec(dtype="int8")
    pool = device.allocate_kv(spec, 7)
    taken = 8 * device.bytes_per_block(spec)
    assert device.memory().reserved_by_this_process == taken
    assert before.free - device.memory().free == taken
    device.free_kv(pool)
    device.free_kv(pool)
    assert device.memory() == before
