"""How sequences end, and what is told with it."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.batch import StepResult, TokenLogprobs
from pageport.scheduling.request import FinishReason
from pageport.testing.null_runner import fingerprint, null_continuation, null_logprobs
from pageport.testing.scheduler_drive import SchedulerDrive


def test_a_stop_token_ends_the_sequence_and_is_kept():
    drive = SchedulerDrive()
    solo = null_continuation([1, 2], max_tokens=9, vocab_size=32)
    request = drive.add([1, 2], max_tokens=9, stop_token_ids=frozenset({solo[3]}))
    drive.run()
    assert drive.output(request) == solo[:4]
    assert request.sequences[0].finish_reason is FinishReason.STOP
    assert request.sequences[0].stop_token_id == solo[3]


def test_max_tokens_ends_with_length():
    drive = SchedulerDrive()
    request = drive.add([1, 2], max_tokens=1)
    drive.run()
    assert (len(drive.output(request)), drive.ends["0", 0]) == (1, FinishReason.LENGTH)
    assert request.sequences[0].stop_token_id is None


def test_the_context_ends_with_length():
    """LIM-03"""
    drive = SchedulerDrive(max_model_len=10)
    request = drive.add([1, 2], max_tokens=50)
    drive.run()
    assert (len(drive.output(request)), drive.ends["0", 0]) == (8, FinishReason.LENGTH)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_deadline_ends_running_and_waiting_requests(depth):
    drive = SchedulerDrive(depth=depth, settings={"max_num_seqs": 2})
    running = drive.add([1], max_tokens=50, deadline=5.0, num_sequences=2)
    waiting = drive.add([2], deadline=5.0)
    patient = drive.add([3])
    for _ in range(4):
        drive.step()
    drive.clock.now = 5.0
    drive.run()
    timeout, length = FinishReason.TIMEOUT, FinishReason.LENGTH
    ends = {("0", 0): timeout, ("0", 1): timeout, ("1", 0): timeout, ("2", 0): length}
    assert drive.ends == ends
    assert 0 < len(drive.output(running)) <= 4
    assert drive.output(waiting) == []
    assert len(drive.output(patient)) == 4
    drive.require_idle()


def test_a_deadline_is_told_although_nothing_runs():
    drive = SchedulerDrive()
    drive.add([1], deadline=1.0)
    drive.clock.now = 2.0
    assert drive.scheduler.schedule() is None
    assert drive.scheduler.has_work
    assert [update.sequence.finish_reason for update in drive.scheduler.take_updates()] == [FinishReason.TIMEOUT]
    assert not drive.scheduler.has_work


def test_unusable_logits_end_one_sequence_with_the_reason():
    drive = SchedulerDrive()
    drive.add([1])
    healthy = drive.add([2])
    batch = drive.scheduler.schedule()
    result = StepResult(token_ids=[[], [7]], errors={0: "logits are NaN"})
    updates = drive.scheduler.commit(batch, result)
    assert [(u.new_token_ids, u.error) for u in updates] == [([], "logits are NaN"), ([7], None)]
    assert updates[0].sequence.finish_reason is FinishReason.ERROR
    assert healthy.sequences[0].finish_reason is None
    drive.scheduler.check()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_failed_step_ends_everything_it_touched(depth):
    drive = SchedulerDrive(depth=depth, settings={"max_num_seqs": 4})
    drive.add([1] * 30, num_sequences=2)
    drive.add([2])
    drive.add([3] * 3, 4, beam=BeamSearchParams(beam_width=2, max_tokens=4))
    batches = [drive.scheduler.schedule() for _ in range(depth + 1)]
    updates = drive.scheduler.commit(batches[0], StepResult(token_ids=[], failure="device lost"))
    assert {update.error for update in updates} == {"device lost"}
    assert {u.sequence.request.request_id for u in updates} == {"0", "1"}
    for batch in batches[1:]:
        drive.scheduler.commit(batch, StepResult(token_ids=[], failure="device lost"))
    drive.scheduler.check()
    drive.run()
    drive.require_idle()


def test_swapped_requests_are_recomputed_after_a_failed_step():
    drive = SchedulerDrive([GroupLayout(num_blocks=12, block_size=4, num_host_blocks=20)])
    requests = [drive.add([i] * 6, max_tokens=26) for i in range(3)]
    batch = drive.scheduler.schedule()
    while not batch.swap_out:
        drive.scheduler.commit(batch, drive.runner.submit(batch).result())
        batch = drive.scheduler.schedule()
    drive.scheduler.commit(batch, StepResult(token_ids=[], failure="device lost"))
    drive.run()
    drive.require_idle()
    kept = requests[2].sequences[0]
    assert kept.finish_reason is FinishReason.LENGTH
    assert kept.token_ids[6:] == null_continuation([2] * 6, max_tokens=26, vocab_size=32)


def test_logprobs_are_passed_on():
    drive = SchedulerDrive()
    drive.add([1])
    scores = TokenLogprobs([7], [-0.5], [1])
    updates = drive.scheduler.commit(drive.scheduler.schedule(), StepResult(token_ids=[[7]], logprobs=[[scores]]))
    assert updates[0].logprobs == [scores]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 40])
def test_prompt_logprobs_are_collected_over_chunks_and_told_once(depth, length):
    drive = SchedulerDrive(depth=depth)
    prompt = [i % 31 for i in range(length)]
    for _ in range(2):
        request = drive.add(prompt, num_sequences=2, wants_prompt_logprobs=True)
        drive.run()
        scores = drive.prompt_logprobs[request.request_id]
        expected = [null_logprobs(fingerprint(prompt[:p]), 32)[prompt[p]] for p in range(1, length)]
        assert scores[0] is None
        assert [score.logprobs[0] for score in scores[1:]] == expected
        assert request.num_cached_tokens == 0


def test_prompt_logprobs_survive_a_preempted_prefill():
    drive = SchedulerDrive([GroupLayout(num_blocks=14, block_size=4)], settings={"scheduling_policy": "priority"})
    prompt = [i % 31 for i in range(40)]
    request = drive.add(prompt, wants_prompt_logprobs=True, priority=1)
    drive.step()
    drive.step()
    drive.add([2] * 40, max_tokens=8, priority=0)
    drive.run()
    assert request.sequences[0].num_preemptions == 1
    assert [score.token_ids[0] for score in drive.prompt_logprobs["0"][1:]] == prompt[1:]


def test_waste_is_recorded_with_every_commit():
    drive = SchedulerDrive()
    drive.add([1] * 6, max_tokens=2)
    drive.run()
    # 6 of 8 slots hold a token, then the blocks are free again.
    assert drive.scheduler.stats().kv_waste_ratio == (0.25,)


def test_stats_name_what_runs_and_waits():
    drive = SchedulerDrive(settings={"max_num_seqs": 2})
    for i in range(3):
        drive.add([i] * 5, max_tokens=9)
    drive.step()
    stats = drive.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.steps_total) == (2, 1, 1)
    assert (stats.kv_blocks_total, stats.kv_blocks_used) == (64, 4)
    assert (stats.prompt_tokens_total, stats.computed_tokens_total, stats.generation_tokens_total) == (10, 10, 2)
