"""One step in flight while the next is scheduled: other timing, same tokens."""

from pageport.cache.layout import GroupLayout
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


def run_mix(depth):
    layouts = [
        GroupLayout(num_blocks=16, block_size=4),
        GroupLayout(num_blocks=24, block_size=2, sliding_window=5),
    ]
    drive = SchedulerDrive(layouts, depth=depth)
    for i in range(12):
        drive.add([i] * (1 + 5 * i % 23), max_tokens=3 + i, stop_token_ids=frozenset({3}), num_sequences=1 + i % 3)
    drive.run()
    drive.require_idle()
    return drive.tokens


def test_depths_give_equal_outputs():
    assert run_mix(0) == run_mix(1)


def test_the_next_decode_is_scheduled_before_the_token_is_known():
    drive = SchedulerDrive(depth=1)
    request = drive.add([1, 2, 3], max_tokens=9)
    drive.submit()
    batch = drive.submit()
    assert (batch.starts, batch.counts) == ([3], [1])
    assert request.sequences[0].token_ids == [1, 2, 3]
    assert request.sequences[0].num_pending == 2


def test_no_more_steps_are_in_flight_than_the_depth_allows():
    drive = SchedulerDrive(depth=1)
    drive.add([1, 2, 3], max_tokens=9)
    assert [drive.submit() is None for _ in range(3)] == [False, False, True]


def test_nothing_is_scheduled_past_max_tokens():
    drive = SchedulerDrive(depth=1)
    drive.add([1, 2, 3], max_tokens=4)
    drive.run()
    assert drive.runner.num_tokens_computed == 3 + 3


def test_nothing_is_scheduled_past_the_context():
    drive = SchedulerDrive(depth=1, max_model_len=8)
    request = drive.add([1, 2, 3], max_tokens=100)
    drive.run()
    assert len(drive.output(request)) == 5
    assert drive.runner.num_tokens_computed == 7


def test_a_token_sampled_after_the_end_is_dropped():
    drive = SchedulerDrive(depth=1)
    solo = null_continuation([1, 2, 3], max_tokens=9, vocab_size=32)
    request = drive.add([1, 2, 3], max_tokens=9, stop_token_ids=frozenset({solo[2]}))
    drive.run()
    assert drive.output(request) == solo[:3]
    assert drive.runner.num_tokens_computed == 3 + 2 + 1
    assert drive.scheduler.stats().generation_tokens_total == 3


def test_a_request_that_needs_the_token_on_the_host_waits_and_others_do_not():
    drive = SchedulerDrive(depth=1)
    drive.add([1], max_tokens=9, needs_host_token=True)
    drive.add([2], max_tokens=9)
    assert len(drive.submit().rows) == 2
    assert len(drive.submit().rows) == 1
    drive.commit()
    drive.commit()
    assert len(drive.submit().rows) == 2


def test_prompt_chunks_follow_each_other_in_flight():
    drive = SchedulerDrive(depth=1)
    drive.add([1] * 30, needs_host_token=True)
    assert [drive.submit().starts, drive.submit().starts] == [[0], [16]]


def test_latency_is_hidden_from_nobody():
    drive = SchedulerDrive(depth=1)
    drive.runner._latency_s = 0.001
    drive.runner._clock = __import__("time").monotonic
    request = drive.add([1, 2], max_tokens=5)
    drive.run()
    assert drive.output(request) == null_continuation([1, 2], max_tokens=5, vocab_size=32)
