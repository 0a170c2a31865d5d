"""Memory, streams, graphs and swapping on a GPU, as far as a recording fake of torch's module can tell."""

from typing import Any

import pytest
import torch

from pageport.backend import KVSpec
from pageport.errors import BackendError
from pageport.testing.conformance.tiny_engine import Answers, TinyEngine, TinyModel, request
from pageport.testing.reference_device import ReferenceDevice
from pageport_triton.accelerator import Accelerator
from pageport_triton.swap_arena import SwapArena

from .recorded_device import HOST, RecordedDevice, RecordedGraphlessDevice
from .recording_accelerator import POISON, RecordingModule

BLOCK = 16
SPEC = KVSpec(num_layers=2, num_kv_heads=2, head_size=8, value_head_size=8, block_size=BLOCK, dtype="float32")


def run(device: Any, *lengths: int, max_tokens: int = 8, **settings: Any) -> tuple[Answers, TinyEngine]:
    generator = torch.Generator().manual_seed(sum(lengths))
    prompts = [torch.randint(256, (length,), generator=generator).tolist() for length in lengths]
    with TinyEngine(device, TinyModel(), block_size=BLOCK, **settings) as engine:
        answers = engine.run(*(request(f"{i}", p, max_tokens=max_tokens) for i, p in enumerate(prompts)))
        engine.engine.check()
    return answers, engine


def tokens(answers: Answers) -> dict[tuple[str, int], list[int]]:
    assert all(answer.error is None for answer in answers.values())
    return {who: answer.tokens for who, answer in answers.items()}


@pytest.mark.parametrize(("lengths", "size"), [((5,), 1), ((5, 6), 2), ((5, 6, 7), 4), ((4, 5, 6, 7, 8), 8)], ids=str)
def test_decode_steps_are_captured_padded_and_replayed(lengths, size):
    device, rows = RecordedDevice(), []
    capture = device.capture
    device.capture = lambda run: rows.append(run_rows(device, run)) or capture(run)
    answers, _ = run(device, *lengths, max_tokens=8)
    assert tokens(answers) == tokens(run(ReferenceDevice(), *lengths, max_tokens=8)[0])
    # Seven decodes: the first by ops, the second captured and, like all later ones, replayed.
    assert device.module.names("capture", "replay") == ["capture"] + ["replay"] * 6
    assert rows == [size]


def run_rows(device: RecordedDevice, run: Any) -> int:
    """Return how many rows of attention a captured step asks for."""
    counts = []
    attention = device.decode_attention
    device.decode_attention = lambda pool, layer, query, params, batch, out: (
        counts.append(batch.num_requests) or attention(pool, layer, query, params, batch, out)
    )
    run()
    del device.decode_attention
    return max(counts)


def test_graphs_share_one_pool_of_memory():
    device = RecordedDevice()
    run(device, 5, 6, 7, max_tokens=6)
    run(device, 5, max_tokens=6)
    assert device.module.names("new pool", "capture") == ["new pool", "capture", "capture"]


def test_next_step_is_submitted_before_the_last_ones_tokens_are_awaited():
    device = RecordedDevice()
    answers, _ = run(device, 5, 6, max_tokens=8)
    assert tokens(answers) == tokens(run(RecordedDevice(), 5, 6, max_tokens=8, pipeline_depth=0)[0])
    order = device.module.names("wait_stream", "synchronize event")
    # Each submitted step makes the copies wait for it; each result waits for its event.
    assert order == ["wait_stream"] + ["wait_stream", "synchronize event"] * 7 + ["synchronize event"]


def test_copies_to_the_host_run_beside_what_is_computed_later():
    device = RecordedDevice()
    first = torch.arange(5)
    wait = device.fetch([first, torch.tensor(2.5)])
    assert device.module.calls[-6:] == [
        ("wait_stream", "copies", "compute"),
        ("enter stream", "copies"),
        ("pinned", (5,)),
        ("pinned", ()),
        ("record", 1, "copies"),
        ("leave stream", "copies"),
    ]
    fetched = wait()
    assert [copy.tolist() for copy in fetched] == [[0, 1, 2, 3, 4], 2.5]
    assert device.module.calls[-1] == ("synchronize event", 1)


def test_fake_shows_who_reads_before_waiting():
    module = RecordingModule()
    pinned = module.pinned((2,), torch.uint8)
    pinned.copy_(torch.tensor([1, 2], dtype=torch.uint8), non_blocking=True)
    assert pinned.tolist() == [POISON, POISON]
    module.synchronize(HOST)
    assert pinned.tolist() == [1, 2]


def test_device_without_graphs_runs_op_by_op():
    device = RecordedGraphlessDevice()
    answers, _ = run(device, 5, 6)
    assert tokens(answers) == tokens(run(RecordedDevice(), 5, 6)[0])
    assert "graph" not in device.capabilities.features
    assert device.module.names("capture", "replay") == []


def test_memory_that_the_allocator_keeps_counts_as_free():
    device = RecordedDevice()
    device.module.reserved, device.module.allocated = 1000, 300
    memory = device.memory()
    assert (memory.total - memory.free, memory.reserved_by_this_process) == (300, 1000)


def test_arena_is_given_back_while_asleep_and_taken_again():
    device = RecordedDevice()
    pools = [device.allocate_kv(SPEC, 3), device.allocate_kv(SPEC, 5)]
    sizes = [memory.untyped_storage().nbytes() for pool in pools for memory in device.memories(pool)]
    device.sleep()
    assert [m.untyped_storage().nbytes() for pool in pools for m in device.memories(pool)] == [0] * 4
    assert device.module.names("synchronize device", "empty_cache") == ["synchronize device", "empty_cache"]
    device.wake()
    assert [m.untyped_storage().nbytes() for pool in pools for m in device.memories(pool)] == sizes


def test_freed_pool_is_not_taken_again():
    device = RecordedDevice()
    pool = device.allocate_kv(SPEC, 3)
    memories = device.memories(pool)
    device.free_kv(pool)
    device.sleep()
    device.wake()
    assert all(memory.untyped_storage().nbytes() for memory in memories)
    assert device._arena.num_bytes == 0


def test_graph_from_before_the_sleep_is_refused():
    device = RecordedDevice()
    graph = device.capture(lambda: None)
    graph.replay()
    device.sleep()
    device.wake()
    with pytest.raises(BackendError, match="captured before the device slept"):
        graph.replay()


def test_preempted_requests_are_swapped_through_pinned_memory():
    device = RecordedDevice()
    settings = {"num_kv_blocks": 7, "max_model_len": 6 * BLOCK, "swap_space": 0.01}
    answers, engine = run(device, 20, 21, 22, max_tokens=40, **settings)
    assert engine.stats().preemptions_total > 0
    assert tokens(answers) == tokens(run(ReferenceDevice(), 20, 21, 22, max_tokens=40, **settings)[0])
    half = ("pinned", (32 << 20,))
    assert device.module.calls.count(half) == 2


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
@pytest.mark.parametrize("blocks_a_half", [1, 2, 8])
def test_blocks_come_back_as_they_went_whatever_fits_the_arena(num_blocks, blocks_a_half):
    module, block_bytes = RecordingModule(), 24
    accelerator = Accelerator(module, HOST, new_graph=None, pinned=module.pinned)
    arena = SwapArena(accelerator, HOST, num_bytes=2 * blocks_a_half * block_bytes)
    memory = torch.randint(256, (9, block_bytes), dtype=torch.uint8)
    ids = torch.randperm(9)[:num_blocks].tolist()
    out = torch.zeros(num_blocks, block_bytes, dtype=torch.uint8)
    arena.to_host(lambda some, rows: rows.copy_(memory[list(some)]), ids, out)
    assert torch.equal(out, memory[ids])
    restored = torch.zeros_like(memory)
    arena.to_device(lambda some, rows: restored.__setitem__(list(some), torch.Tensor.clone(rows)), ids, out)
    assert torch.equal(restored[ids], memory[ids])


def test_arena_waits_before_it_uses_a_half_again():
    module, block_bytes = RecordingModule(), 8
    arena = SwapArena(Accelerator(module, HOST, new_graph=None, pinned=module.pinned), HOST, num_bytes=2 * block_bytes)
    data = torch.zeros(3, block_bytes, dtype=torch.uint8)
    arena.to_device(lambda some, rows: None, [0, 1, 2], data)
    assert module.names("record", "synchronize event") == ["record", "record", "synchronize event", "record"]
