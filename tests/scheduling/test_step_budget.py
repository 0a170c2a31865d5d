"""One token budget a step, shared between decodes, long prompts and short ones."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.scheduling.step_budget import StepTimeModel, share_out
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


def test_a_lone_prompt_takes_the_whole_budget():
    assert share_out([1000], 64) == [64]


def test_a_long_prompt_leaves_half_to_those_behind_it():
    assert share_out([1000, 5, 1000], 64) == [32 + 13, 5, 14]


def test_what_is_over_completes_the_prompt_that_lacks_least():
    assert share_out([1000, 6], 16) == [10, 6]


def test_what_nobody_needs_is_not_given():
    assert share_out([3, 4], 64) == [3, 4]


def test_one_token_goes_to_the_first():
    assert share_out([10, 10], 1) == [1, 0]


def test_decodes_come_first_and_prompt_chunks_fill_the_budget():
    drive = SchedulerDrive(settings={"max_num_batched_tokens": 16})
    drive.add([1, 2], max_tokens=9)
    drive.step()
    drive.add([3] * 40)
    batch = drive.step()
    assert (batch.num_decodes, batch.counts) == (1, [1, 15])


def test_decodes_run_in_every_step_of_a_long_prefill():
    drive = SchedulerDrive(settings={"max_num_batched_tokens": 16})
    short = drive.add([1, 2], max_tokens=8)
    drive.step()
    drive.add([3] * 200)
    for _ in range(7):
        assert drive.step().num_decodes == 1
    assert len(drive.output(short)) == 8


def test_a_late_short_prompt_gets_its_token_before_an_earlier_long_prefill_ends():
    drive = SchedulerDrive(settings={"max_num_batched_tokens": 16})
    long = drive.add([1] * 160)
    drive.step()
    short = drive.add([2] * 6)
    drive.step()
    assert len(drive.output(short)) == 1
    drive.run()
    assert drive.first_token_step[long.request_id] > 10


def test_a_short_prompt_overtakes_two_long_ones_in_progress():
    drive = SchedulerDrive([GroupLayout(num_blocks=200, block_size=4)], settings={"max_num_batched_tokens": 32})
    drive.add([1] * 200)
    drive.add([2] * 200)
    drive.step()
    short = drive.add([3] * 4)
    drive.step()
    assert len(drive.output(short)) == 1


def test_few_long_prompts_are_in_progress_at_once():
    drive = SchedulerDrive([GroupLayout(num_blocks=400, block_size=4)], settings={"max_num_batched_tokens": 64})
    for i in range(8):
        drive.add([i] * 100)
    assert drive.step().counts == [36, 16, 8, 4]


def test_no_step_exceeds_the_budget_or_the_rows():
    drive = SchedulerDrive(settings={"max_num_batched_tokens": 10, "max_num_seqs": 4})
    for i in range(12):
        drive.add([i] * (3 * i + 1), max_tokens=5)
    drive.run()
    assert max(batch.num_tokens for batch in drive.batches) == 10
    assert max(len(batch.rows) for batch in drive.batches) == 4


def test_fewer_tokens_than_rows_bound_the_running_sequences():
    drive = SchedulerDrive(settings={"max_num_batched_tokens": 2, "max_num_seqs": 8})
    for i in range(5):
        drive.add([i], max_tokens=6)
    drive.run()
    assert max(len(batch.rows) for batch in drive.batches) == 2


@pytest.mark.parametrize("budget", [1, 2, 15, 16, 17, 33, 512])
@pytest.mark.parametrize("window", [None, 16])
def test_chunk_size_does_not_change_outputs(budget, window):
    """KVC-08, KVC-09: chunks around block and window edges, decodes far past the window, n = 2, prompt logprobs."""
    layouts = [GroupLayout(num_blocks=400, block_size=16), GroupLayout(num_blocks=400, block_size=4)]
    if window:
        layouts[1] = GroupLayout(num_blocks=400, block_size=4, sliding_window=window)
    drive = SchedulerDrive(layouts, settings={"max_num_batched_tokens": budget})
    prompt = [i % 31 for i in range(70)]
    requests = [
        drive.add(prompt, max_tokens=60, num_sequences=2),
        drive.add([*prompt[:40], 1], max_tokens=9, wants_prompt_logprobs=True),
    ]
    drive.run()
    assert drive.output(requests[0], 1) == null_continuation(prompt, max_tokens=60, vocab_size=32, index=1)
    assert drive.output(requests[1]) == null_continuation([*prompt[:40], 1], max_tokens=9, vocab_size=32)
    assert len(drive.prompt_logprobs["1"]) == 41


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48])
def test_a_repeated_prompt_computes_at_least_one_token(length):
    """KVC-01: a full hit of a whole number of blocks; KVC-05: the same tokens as without a hit."""
    drive = SchedulerDrive([GroupLayout(num_blocks=64, block_size=16)], settings={"max_num_batched_tokens": 64})
    prompt = list(range(length))
    for _ in range(2):
        request = drive.add(prompt)
        drive.run()
        assert drive.output(request) == null_continuation(prompt, max_tokens=4, vocab_size=32)
    assert request.num_cached_tokens == (length - 1) // 16 * 16
    longer = drive.add([*prompt, 1, 2, 3])
    drive.run()
    assert longer.num_cached_tokens == length // 16 * 16


def test_step_time_is_learnt_as_a_fixed_part_and_a_part_per_token():
    model = StepTimeModel()
    for num_tokens in (1, 100, 50, 10):
        model.observe(num_tokens, (2 + 0.5 * num_tokens) / 1000)
    assert model.tokens_within(27) == 50
    assert model.tokens_within(1) == 0


def test_step_time_of_equal_steps_is_taken_as_proportional():
    model = StepTimeModel()
    for _ in range(3):
        model.observe(10, 0.005)
    assert model.tokens_within(20) == 40


def test_nothing_is_predicted_from_nothing():
    assert StepTimeModel().tokens_within(10) is None


def test_a_step_time_limit_shrinks_chunks_beside_decodes_only():
    settings = {"max_num_batched_tokens": 200, "max_step_time_ms": 41.0}
    drive = SchedulerDrive([GroupLayout(num_blocks=400, block_size=4)], settings=settings, max_model_len=800)
    for num_tokens in (1, 100, 1, 50):
        drive.clock.now += 10
        batch = type("Step", (), {"num_tokens": num_tokens})
        drive.scheduler.note_step_time(batch, 0.001 * num_tokens)
    drive.add([1] * 200, max_tokens=9)
    assert drive.step().counts == [200]
    drive.add([2] * 300)
    assert drive.step().counts == [1, 40]


def test_a_step_in_flight_behind_another_counts_from_that_ones_end():
    drive = SchedulerDrive(settings={"max_step_time_ms": 10.0})
    step = type("Step", (), {"num_tokens": 10})
    for _ in range(5):
        drive.clock.now += 0.010
        drive.scheduler.note_step_time(step, 0.020)  # submitted one step earlier
    assert drive.scheduler._step_time.tokens_within(10) == 8  # 20 ms once, then 10 ms each
