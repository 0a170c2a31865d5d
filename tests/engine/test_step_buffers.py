"""A batch of plain ints becomes the right tensors."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pageport.cache.layout import GroupLayout
from pageport.engine.step_buffers import StagedTensor, Step, StepBuffers
from pageport.scheduling.batch import Batch, BlockUpdate

HISTORY = torch.arange(4 * 40, dtype=torch.int32).view(4, 40)


def buffers() -> StepBuffers:
    built = StepBuffers(
        [GroupLayout(num_blocks=9, block_size=4)],
        max_num_seqs=4,
        max_tokens=16,
        max_model_len=39,
        device=torch.device("cpu"),
        num_stages=1,
    )
    built.update_tables([BlockUpdate(2, 0, 0, [7, 3, 5]), BlockUpdate(0, 0, 0, [1]), BlockUpdate(0, 0, 1, [8])])
    return built


def mixed_step(target: StepBuffers) -> Step:
    return target.build(Batch(step=0, rows=[2, 0], starts=[9, 2], counts=[1, 4], num_decodes=1), HISTORY)


def test_tokens_and_positions_follow_the_rows() -> None:
    step = mixed_step(buffers())
    assert step.inputs.positions.tolist() == [9, 2, 3, 4, 5]
    assert step.inputs.token_ids.tolist() == [2 * 40 + 9, 2, 3, 4, 5]


def test_slots_and_tables_follow_the_block_tables() -> None:
    batch = mixed_step(buffers()).batches[0]
    assert batch.slot_mapping.tolist() == [5 * 4 + 1, 1 * 4 + 2, 1 * 4 + 3, 8 * 4, 8 * 4 + 1]
    assert batch.query_start_loc.tolist() == [0, 1, 5]
    assert batch.seq_lens.tolist() == [10, 6]
    assert batch.block_table[0].tolist() == [7, 3, 5]
    assert batch.block_table[1, :2].tolist() == [1, 8]
    assert (batch.max_query_len, batch.max_seq_len, batch.num_decodes) == (4, 10, 1)


def test_captured_decodes_read_what_a_step_writes_and_know_its_bounds() -> None:
    target = buffers()
    captured = target.decode_step(2)
    exact = target.build(Batch(step=0, rows=[2, 0], starts=[9, 4], counts=[1, 1], num_decodes=2), HISTORY)
    for name in ("query_start_loc", "seq_lens", "slot_mapping"):
        assert torch.equal(getattr(captured.batches[0], name), getattr(exact.batches[0], name))
    assert captured.inputs.token_ids.tolist() == exact.inputs.token_ids.tolist() == [2 * 40 + 9, 4]
    assert captured.inputs.positions.tolist() == [9, 4]
    table = captured.batches[0].block_table
    assert table[:, :3].tolist() == exact.batches[0].block_table.tolist() == [[7, 3, 5], [1, 8, -1]]
    assert (table.shape, captured.batches[0].max_seq_len) == ((2, 10), 40)
    assert captured.batches[0].host.seq_lens.size == 0


def test_padding_rows_have_no_tokens_and_no_slots() -> None:
    target = buffers()
    batch = Batch(step=0, rows=[2, 0], starts=[9, 4], counts=[1, 1], num_decodes=2)
    exact, padded = target.build(batch, HISTORY), target.build(batch, HISTORY, num_padding=2)
    attention = padded.batches[0]
    assert (attention.num_requests, attention.num_decodes, attention.num_tokens, attention.max_query_len) == (
        4,
        4,
        4,
        1,
    )
    assert attention.query_start_loc.tolist() == attention.host.query_start_loc.tolist() == [0, 1, 2, 3, 4]
    assert attention.seq_lens.tolist() == attention.host.seq_lens.tolist() == [*exact.seq_lens.tolist(), 0, 0]
    assert attention.slot_mapping.tolist() == [*exact.batches[0].slot_mapping.tolist(), -1, -1]
    assert padded.inputs.token_ids.shape == padded.inputs.positions.shape == (4,)


def test_tensors_keep_their_addresses() -> None:
    target = buffers()
    first = mixed_step(target).batches[0]
    addresses = [t.data_ptr() for t in (first.query_start_loc, first.seq_lens, first.block_table, first.slot_mapping)]
    second = target.build(Batch(step=1, rows=[0], starts=[6], counts=[1], num_decodes=1), HISTORY).batches[0]
    assert addresses == [
        t.data_ptr() for t in (second.query_start_loc, second.seq_lens, second.block_table, second.slot_mapping)
    ]


class Copies(TorchDispatchMode):
    """Keeps what is copied to a device."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[torch.Tensor] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function is torch.ops.aten.copy_.default:
            self.sources.append(arguments[1])
        return function(*arguments, **(named or {}))


def test_uploads_have_no_gaps_and_take_turns(monkeypatch) -> None:
    # A device that reads only pinned memory without gaps would else make the host wait.
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    staged = StagedTensor((4, 6), torch.int32, torch.device("meta"), num_stages=2)
    with Copies() as copies:
        for _ in range(3):
            staged.next()
            assert staged.upload(3, 2).shape == (3, 2)
    assert all(source.is_contiguous() and source.shape == (3, 6) for source in copies.sources)
    first, second, third = (source.data_ptr() for source in copies.sources)
    assert first == third != second
