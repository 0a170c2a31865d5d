"""The ordered queue, the pool of rows, and the host's cost of a step."""

import statistics
import time

from pageport.cache.layout import GroupLayout
from pageport.scheduling.policy import SequenceQueue, fcfs_rank, priority_rank
from pageport.scheduling.request import Request, Sequence
from pageport.scheduling.row_pool import RowPool
from pageport.testing.scheduler_drive import SchedulerDrive


def make_sequence(sequence_id, arrival_time=0.0, priority=0, protection=None):
    request = Request(
        request_id="", prompt_token_ids=[1], max_tokens=1, sampling=None, arrival_time=arrival_time, priority=priority
    )
    sequence = Sequence(sequence_id=sequence_id, request=request, index=0, token_ids=[1], token_limit=2)
    sequence.protection = protection
    return sequence


def ranked_ids(rank, sequences):
    queue = SequenceQueue()
    for sequence in sequences:
        sequence.rank = rank(sequence)
        queue.add(sequence)
    return [sequence.sequence_id for sequence in queue]


def test_arrival_decides_under_fcfs():
    sequences = [make_sequence(0, arrival_time=2.0), make_sequence(1, priority=9), make_sequence(2, arrival_time=1.0)]
    assert ranked_ids(fcfs_rank, sequences) == [1, 2, 0]


def test_priority_then_arrival_decide_under_the_priority_policy():
    sequences = [make_sequence(0, 2.0, 1), make_sequence(1, 3.0, 0), make_sequence(2, 1.0, 1)]
    assert ranked_ids(priority_rank, sequences) == [1, 2, 0]


def test_the_protected_come_first_in_the_order_of_their_protection():
    sequences = [
        make_sequence(0, 0.0, 0),
        make_sequence(1, 9.0, 9, protection=1),
        make_sequence(2, 9.0, 9, protection=0),
    ]
    assert ranked_ids(priority_rank, sequences) == [2, 1, 0]


def test_a_queue_may_change_while_it_is_read():
    queue = SequenceQueue()
    for i in range(3):
        sequence = make_sequence(i)
        sequence.rank = fcfs_rank(sequence)
        queue.add(sequence)
    for sequence in queue:
        queue.remove(sequence)
    assert len(queue) == 0
    assert queue.first() is None


def test_claimed_rows_are_not_available_to_others():
    rows = RowPool(4)
    rows.claim("a", 3)
    assert rows.num_available == 1
    taken = [rows.take(), rows.take_claimed("a")]
    assert rows.num_available == 0
    rows.drop_claim("a")
    assert rows.num_available == 2
    rows.check(taken)


def test_a_request_takes_no_more_rows_than_it_claims():
    rows = RowPool(4)
    rows.claim("a", 1)
    assert rows.take_claimed("a") is not None
    assert rows.take_claimed("a") is None


def test_a_step_of_256_decodes_costs_the_host_less_than_a_millisecond():
    drive = SchedulerDrive(
        [GroupLayout(num_blocks=2600, block_size=16)], settings={"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    )
    for i in range(256):
        drive.add([i] * (20 + i % 16), max_tokens=130)
    drive.runner._verify = False
    seconds = []
    while drive.scheduler.has_work:
        start = time.thread_time()
        batch = drive.scheduler.schedule()
        scheduled = time.thread_time() - start
        result = drive.runner.submit(batch).result()
        start = time.thread_time()
        drive.scheduler.commit(batch, result)
        if batch.num_decodes == 256:
            seconds.append(scheduled + time.thread_time() - start)
    # CPU time, in the quietest 16 steps, which allocate one block for every sequence: the machine may be busy.
    assert min(statistics.mean(seconds[i : i + 16]) for i in range(0, len(seconds) - 16, 4)) < 1e-3
