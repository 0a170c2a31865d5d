"""The simulated device of static shapes: what it takes, what it refuses, and what it counts."""

from dataclasses import replace

import pytest
import torch

from pageport.backend.program import Bucket
from pageport.backend.reference import static_decoder
from pageport.errors import BackendError
from pageport.testing.static_device import StaticDevice

from .static_scene import CONTEXT, DECODES, PROMPT, build, decode_step, described, prompt_step


@pytest.fixture
def device():
    return StaticDevice(token_buckets=(16,), request_buckets=(4,))


@pytest.fixture
def program(device):
    built = build(device)
    for bucket in (DECODES, PROMPT):
        built.compile(bucket)
    return built


def within(monkeypatch, extra):
    """Let the program's graph do something more with its logits' inputs."""
    plain = static_decoder.choose_statically

    def chosen(logits, choice):
        extra(logits)
        return plain(logits, choice)

    monkeypatch.setattr(static_decoder, "choose_statically", chosen)


def test_steps_of_compiled_buckets_run_and_are_counted(device, program):
    prompt = program.step(prompt_step([5, 6, 7, 8, 9], [3, 1]))
    program.step(decode_step([(4, 5, [3, 1])]))
    program.step(decode_step([(4, 6, [3, 1]), (2, 0, [7])]))
    assert prompt.logits().shape == (1, 50)
    assert prompt.hidden().shape == (16, 32)
    (record,) = device.records
    assert (device.num_compilations, dict(record.steps)) == (2, {PROMPT: 1, DECODES: 2})


def test_a_request_is_computed_alike_in_any_bucket_and_beside_any_other():
    device = StaticDevice(token_buckets=(8, 16), request_buckets=(1, 4))
    logits = []
    for prompt, decode in ((Bucket(1, 8, CONTEXT), Bucket(1, 1, CONTEXT)), (PROMPT, DECODES)):
        program = build(device, [prompt, decode])
        program.compile(prompt)
        program.compile(decode)
        program.step(prompt_step([5, 6, 7, 8, 9], [3, 1], prompt))
        others = [] if decode.requests == 1 else [(9, 3, [8]), (9, 0, [2])]
        logits.append(program.step(decode_step([(4, 5, [3, 1]), *others], decode)).logits()[0])
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


def test_outputs_stay_what_they_are_when_later_steps_run(program):
    first = program.step(prompt_step([5, 6, 7], [0]))
    before = first.logits().clone(), first.hidden().clone()
    program.step(prompt_step([9, 9, 9, 9], [1]))
    assert torch.equal(first.logits(), before[0])
    assert torch.equal(first.hidden(), before[1])


@pytest.mark.parametrize(
    ("buckets", "words"),
    [
        ([Bucket(1, 17, CONTEXT)], "none of the shapes that the device declares"),
        ([Bucket(3, 3, CONTEXT)], "none of the shapes that the device declares"),
        ([Bucket(4, 16, CONTEXT)], "none of the shapes that the device declares"),
        ([Bucket(1, 16, CONTEXT + 1)], "not made of whole blocks"),
    ],
)
def test_shapes_that_were_not_declared_are_refused_when_a_model_is_built(device, buckets, words):
    with pytest.raises(BackendError, match=words):
        build(device, buckets)


def test_contexts_are_the_declared_ones_in_whole_blocks():
    device = StaticDevice(token_buckets=(16,), context_buckets=(10, 30))
    build(device, [Bucket(1, 16, 12), PROMPT])
    with pytest.raises(BackendError, match="context=28"):
        build(device, [Bucket(1, 16, 28)])


def test_nothing_is_compiled_late(device):
    program = build(device)
    program.compile(PROMPT)
    with pytest.raises(BackendError, match="Bucket.*, which was not compiled"):
        program.step(decode_step([(4, 0, [3])]))
    with pytest.raises(BackendError, match="but the model was built for"):
        program.compile(Bucket(1, 1, CONTEXT))
    program.step(prompt_step([5], [3]))
    with pytest.raises(BackendError, match="after the first step"):
        program.compile(DECODES)
    assert device.num_compilations == 1


def test_compiling_twice_counts_twice(device):
    program = build(device)
    program.compile(PROMPT)
    program.compile(PROMPT)
    assert device.num_compilations == 2


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
def test_a_step_that_is_not_of_its_bucket_is_refused_by_name(program, changes, words):
    with pytest.raises(BackendError, match=words):
        program.step(replace(prompt_step([5, 6, 7], [1]), **changes))


def test_padding_among_requests_is_refused(program):
    lengths = torch.tensor([3, 0, 1, 0], dtype=torch.int32)
    with pytest.raises(BackendError, match="padding stands behind"):
        program.step(replace(decode_step([(4, 2, [3]), (2, 0, [7])]), seq_lens=lengths))


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
def test_what_a_compiled_graph_could_not_do_is_refused_by_name(program, monkeypatch, extra, words):
    within(monkeypatch, extra)
    with pytest.raises(BackendError, match=words.replace(".*", "in a step of Bucket.*, tokens=16,.*")):
        program.step(prompt_step([5, 6, 7], [1]))


def test_a_branch_of_python_that_looks_at_the_batch_is_refused(program, monkeypatch):
    turns = iter((1.0, 1.0, 2.0))
    within(monkeypatch, lambda x: x * next(turns))
    program.step(prompt_step([5, 6, 7], [1]))
    program.step(prompt_step([5, 6], [1]))
    with pytest.raises(BackendError, match="aten.mul .* Python looked at the batch"):
        program.step(prompt_step([5, 6, 7], [1]))


def test_a_step_of_more_ops_than_the_first_one_is_refused(program, monkeypatch):
    turns = iter((False, True))
    within(monkeypatch, lambda x: x * 2 if next(turns) else x)
    program.step(prompt_step([5, 6, 7], [1]))
    with pytest.raises(BackendError, match="Python looked at the batch"):
        program.step(prompt_step([5, 6, 7], [1]))


def test_what_nobody_wrote_is_nan_and_never_read(device):
    built = build(device)
    built.compile(PROMPT)
    output = built.step(prompt_step([5, 6, 7], [1]))
    assert output.logits().isfinite().all()
    (pool,) = built._program._decoder._pools
    assert pool.key[:, [0, *range(2, 12)]].isnan().all()


def test_memory_tells_what_pools_take(device):
    before = device.memory()
    spec = replace(described().cache_groups[0], dtype="int8")
    pool = device.allocate_kv(spec, 7)
    taken = 8 * device.bytes_per_block(spec)
    assert device.memory().reserved_by_this_process == taken
    assert before.free - device.memory().free == taken
    device.free_kv(pool)
    device.free_kv(pool)
    assert device.memory() == before

