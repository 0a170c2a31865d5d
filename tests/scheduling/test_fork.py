"""n choices of one prompt: computed once, shared, copied on write."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.scheduling.request import FinishReason, Status
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


def solo(prompt, index, max_tokens=4):
    return null_continuation(prompt, max_tokens=max_tokens, vocab_size=32, index=index)


@pytest.mark.parametrize("depth", [0, 1])
def test_eight_choices_of_500_tokens_compute_500_and_copy_at_most_eight_blocks(depth):
    layout = [GroupLayout(num_blocks=100, block_size=16)]
    settings = {"max_num_batched_tokens": 128}
    drive = SchedulerDrive(layout, depth=depth, max_model_len=600, settings=settings)
    prompt = [i % 29 for i in range(500)]
    request = drive.add(prompt, max_tokens=20, num_sequences=8)
    drive.run()
    assert drive.runner.num_tokens_computed == 500 + 8 * 19
    assert drive.runner.num_blocks_copied == 7
    assert drive.scheduler.stats().prompt_tokens_total == 500
    assert [drive.output(request, i) for i in range(8)] == [solo(prompt, i, 20) for i in range(8)]
    drive.require_idle()


def test_choices_of_a_whole_number_of_blocks_copy_nothing():
    drive = SchedulerDrive()
    drive.add([1] * 8, num_sequences=4)
    drive.run()
    assert drive.runner.num_blocks_copied == 0


def test_choices_share_the_prompts_blocks():
    drive = SchedulerDrive()
    drive.add([1] * 12, max_tokens=9, num_sequences=4)
    for _ in range(3):
        drive.step()
    assert drive.blocks.usage().used == (3 + 4,)


def test_every_choice_is_sampled_in_the_step_that_ends_the_prompt():
    drive = SchedulerDrive()
    drive.add([1] * 20, num_sequences=3)
    assert drive.step().sample_rows == []
    batch = drive.step()
    assert batch.sample_sources == [0, 0, 0]
    assert len(set(batch.sample_rows)) == 3
    assert [new.index for new in batch.new_rows] == [1, 2]


def test_rows_of_siblings_are_claimed_when_the_prompt_starts():
    drive = SchedulerDrive(settings={"max_num_seqs": 4, "max_num_batched_tokens": 8})
    four = drive.add([1] * 30, num_sequences=4)
    late = drive.add([2], max_tokens=1)
    drive.run()
    assert drive.first_token_step[four.request_id] < drive.first_token_step[late.request_id]
    assert drive.runner.num_tokens_computed == 30 + 4 * 3 + 1


def test_more_choices_than_rows_run_one_after_the_other():
    drive = SchedulerDrive(settings={"max_num_seqs": 2})
    prompt = [1] * 10
    request = drive.add(prompt, num_sequences=5)
    drive.run()
    assert [drive.output(request, i) for i in range(5)] == [solo(prompt, i) for i in range(5)]
    assert drive.scheduler.stats().prompt_tokens_total == 10
    # Two full blocks are found again, two tokens are computed anew by each of the three late choices.
    assert drive.runner.num_tokens_computed == 10 + 3 * 2 + 5 * 3


@pytest.mark.parametrize("num_host_blocks", [0, 20])
def test_a_preempted_choice_comes_back_alone(num_host_blocks):
    layout = [GroupLayout(num_blocks=12, block_size=4, num_host_blocks=num_host_blocks)]
    drive = SchedulerDrive(layout)
    prompt = [3] * 10
    request = drive.add(prompt, max_tokens=18, num_sequences=3)
    drive.run()
    assert sum(sequence.num_preemptions for sequence in request.sequences) > 0
    assert [drive.output(request, i) for i in range(3)] == [solo(prompt, i, 18) for i in range(3)]
    assert drive.scheduler.stats().prompt_tokens_total == 10


@pytest.mark.parametrize("depth", [0, 1])
def test_aborting_the_choice_that_computes_the_prompt_loses_nothing(depth):
    drive = SchedulerDrive(depth=depth)
    prompt = [1] * 40
    request = drive.add(prompt, num_sequences=3)
    drive.step()
    drive.step()
    drive.abort(request.request_id, 0)
    drive.run()
    assert drive.output(request, 0) == []
    assert [drive.output(request, i) for i in (1, 2)] == [solo(prompt, i) for i in (1, 2)]
    assert drive.runner.num_tokens_computed == 40 + 2 * 3
    drive.require_idle()


def test_aborting_a_choice_that_has_not_started_leaves_the_others():
    drive = SchedulerDrive()
    request = drive.add([1] * 40, num_sequences=3)
    drive.abort(request.request_id, 0)
    drive.step()
    drive.abort(request.request_id, 2)
    drive.run()
    assert request.sequences[2].finish_reason is FinishReason.ABORT
    assert drive.output(request, 1) == solo([1] * 40, 1)
    assert drive.runner.num_tokens_computed == 40 + 3


def test_the_prompt_carrier_is_preempted_with_its_siblings_unforked():
    drive = SchedulerDrive([GroupLayout(num_blocks=14, block_size=4)], settings={"scheduling_policy": "priority"})
    request = drive.add([1] * 40, num_sequences=2, priority=1)
    drive.step()
    drive.add([2] * 40, max_tokens=8, priority=0)
    drive.step()
    assert [s.status for s in request.sequences] == [Status.WAITING, Status.WAITING]
    drive.run()
    assert [drive.output(request, i) for i in range(2)] == [solo([1] * 40, i) for i in range(2)]
