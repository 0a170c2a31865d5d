"""Who steps aside when blocks are short, and that nobody notices but by the time."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.scheduling.request import Status
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


def crowded_drive(num_blocks=12, num_host_blocks=0, **options):
    layout = GroupLayout(num_blocks=num_blocks, block_size=4, num_host_blocks=num_host_blocks)
    return SchedulerDrive([layout], **options)


def run_crowd(drive, count=3):
    requests = [drive.add([10 + i] * 6, max_tokens=26) for i in range(count)]
    drive.run()
    solo = [null_continuation([10 + i] * 6, max_tokens=26, vocab_size=32) for i in range(count)]
    assert [drive.output(request) for request in requests] == solo
    drive.require_idle()
    return drive.scheduler.stats()


@pytest.mark.parametrize("depth", [0, 1])
def test_recomputed_requests_give_the_same_tokens(depth):
    stats = run_crowd(crowded_drive(depth=depth))
    assert stats.preemptions_total > 0
    assert stats.swapped_out_blocks_total == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_swapped_requests_give_the_same_tokens_and_compute_nothing_twice(depth):
    stats = run_crowd(crowded_drive(num_host_blocks=20, depth=depth, enable_prefix_caching=False))
    assert stats.preemptions_total > 0
    assert stats.swapped_out_blocks_total > 0
    assert stats.computed_tokens_total == 3 * (6 + 25)


def test_without_host_room_a_victim_is_recomputed():
    stats = run_crowd(crowded_drive(num_host_blocks=1))
    assert stats.preemptions_total > 0
    assert stats.swapped_out_blocks_total == 0


def test_the_latest_arrival_is_the_victim():
    drive = crowded_drive(num_blocks=17)
    requests = [drive.add([10 + i] * 6, max_tokens=26) for i in range(3)]
    drive.run()
    assert [request.sequences[0].num_preemptions > 0 for request in requests] == [False, False, True]


def test_the_least_urgent_is_the_victim_under_the_priority_policy():
    drive = crowded_drive(num_blocks=17, settings={"scheduling_policy": "priority"})
    requests = [drive.add([10 + i] * 6, max_tokens=26, priority=p) for i, p in enumerate((2, 1, 0))]
    drive.run()
    assert [request.sequences[0].num_preemptions > 0 for request in requests] == [True, False, False]


def test_preempted_request_keeps_its_generated_tokens():
    drive = crowded_drive()
    requests = [drive.add([10 + i] * 6, max_tokens=26) for i in range(3)]
    victim = requests[2].sequences[0]
    while not victim.num_preemptions:
        drive.step()
    assert victim.status is Status.WAITING
    assert victim.token_ids == [12] * 6 + drive.output(requests[2])
    assert len(drive.output(requests[2])) > 1


def test_a_swapped_request_returns_before_new_ones_start():
    drive = crowded_drive(num_host_blocks=20)
    victim = [drive.add([10 + i] * 6, max_tokens=26) for i in range(3)][2].sequences[0]
    while victim.status is not Status.SWAPPED:
        drive.step()
    newcomer = drive.add([1], max_tokens=2)
    while victim.status is Status.SWAPPED:
        assert newcomer.sequences[0].status is Status.WAITING
        drive.step()


def test_nothing_starts_in_a_step_that_preempted():
    drive = crowded_drive(num_blocks=12, settings={"max_num_batched_tokens": 64})
    for i in range(6):
        drive.add([10 + i] * 6, max_tokens=20)
    num_preemptions = 0
    while drive.scheduler.has_work:
        batch = drive.step()
        if drive.scheduler.stats().preemptions_total > num_preemptions:
            assert not batch.new_rows
            num_preemptions = drive.scheduler.stats().preemptions_total
    assert num_preemptions > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_no_more_are_preempted_than_blocks_are_short(depth):
    # Five grow into their seventh block in the same step, and one is free.
    drive = crowded_drive(num_blocks=31, depth=depth, settings={"max_num_batched_tokens": 64})
    for i in range(5):
        drive.add([10 + i] * 6, max_tokens=22)
    drive.run()
    assert drive.scheduler.stats().preemptions_total == 1


def test_a_sequence_preempted_three_times_is_protected_and_ranks_first():
    drive = crowded_drive(settings={"scheduling_policy": "priority"})
    patient = drive.add([9] * 6, max_tokens=20, priority=5)
    sequence = patient.sequences[0]
    for number in range(3):
        while sequence.status is not Status.RUNNING:
            drive.step()
        urgent = drive.add([number] * 40, max_tokens=2, priority=0)
        while not drive.output(urgent):
            drive.step()
    assert sequence.num_preemptions == 3
    drive.add([7] * 40, max_tokens=2, priority=0)
    drive.run()
    assert sequence.num_preemptions == 3
    assert drive.output(patient) == null_continuation([9] * 6, max_tokens=20, vocab_size=32)


def test_a_stream_of_short_requests_does_not_starve_a_large_one():
    drive = crowded_drive()
    for number in range(6):
        drive.add([number] * 4, max_tokens=4)
        drive.step()
    large = drive.add([9] * 40, max_tokens=4)
    for number in range(40):
        drive.add([number] * 4, max_tokens=4)
        drive.step()
    assert len(drive.output(large)) == 4


def test_a_more_urgent_request_takes_the_place_of_a_running_one():
    drive = crowded_drive(settings={"scheduling_policy": "priority", "max_num_seqs": 1})
    slow = drive.add([1] * 4, max_tokens=30, priority=1)
    drive.step()
    urgent = drive.add([2] * 4, max_tokens=3, priority=0)
    for _ in range(3):
        drive.step()
    assert len(drive.output(urgent)) == 3
    drive.run()
    assert drive.output(slow) == null_continuation([1] * 4, max_tokens=30, vocab_size=32)


def test_nobody_is_preempted_for_an_urgent_request_that_would_not_fit_anyway():
    drive = crowded_drive(num_blocks=12, settings={"scheduling_policy": "priority"})
    drive.add([1] * 16, max_tokens=20, priority=0)
    lesser = drive.add([2] * 4, max_tokens=3, priority=2)
    drive.step()
    drive.step()
    drive.add([3] * 36, max_tokens=4, priority=1)
    drive.run()
    assert lesser.sequences[0].num_preemptions == 0


def test_a_victim_in_flight_drains_before_its_blocks_are_taken():
    drive = crowded_drive(depth=1)
    victim = [drive.add([10 + i] * 6, max_tokens=26) for i in range(3)][2].sequences[0]
    while not victim.is_draining:
        drive.step()
    assert victim.status is Status.RUNNING
    drive.step()
    drive.step()
    assert victim.status is Status.WAITING
    assert victim.num_pending == 0


def test_a_long_prompt_gets_blocks_from_sequences_behind_it():
    drive = crowded_drive(num_blocks=12, settings={"scheduling_policy": "priority", "max_num_batched_tokens": 8})
    for i in range(3):
        drive.add([10 + i], max_tokens=16, priority=1)
    for _ in range(6):
        drive.step()
    long = drive.add([5] * 40, max_tokens=4, priority=0)
    drive.run()
    assert drive.output(long) == null_continuation([5] * 40, max_tokens=4, vocab_size=32)


def test_recomputed_tokens_are_neither_prompt_tokens_nor_hits():
    """MET-03: prompts are counted once a request, hits at its first scheduling."""
    drive = crowded_drive()
    stats = run_crowd(drive)
    assert stats.preemptions_total > 0
    assert stats.prompt_tokens_total == stats.prefix_query_tokens_total == 18
    assert stats.prefix_hit_tokens_total == 0
    assert stats.generation_tokens_total == 3 * 26
    assert stats.computed_tokens_total > 3 * (6 + 25)
    assert all(request.num_cached_tokens == 0 for request in drive.requests.values())
