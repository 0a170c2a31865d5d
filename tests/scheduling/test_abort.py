"""Aborts at any moment, and what they leave behind: nothing."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.request import FinishReason
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("depth", [0, 1])
def test_an_abort_at_any_step_frees_everything(num_steps, depth):
    """ABT-01: in the queue, while the prompt is computed, while it generates."""
    drive = SchedulerDrive(depth=depth)
    request = drive.add([1] * 40, max_tokens=100, num_sequences=2)
    for _ in range(num_steps):
        drive.step()
    drive.abort(request.request_id)
    drive.run()
    assert len(drive.batches) <= num_steps
    drive.require_idle()


def test_aborts_are_idempotent_and_unknown_ids_are_ignored():
    """ABT-02"""
    drive = SchedulerDrive()
    done, cut = drive.add([1]), drive.add([2], max_tokens=50, num_sequences=2)
    for _ in range(6):
        drive.step()
    for _ in range(2):
        drive.abort(done.request_id)
        drive.abort("nobody")
        drive.abort(cut.request_id, 1)
        drive.abort(cut.request_id, 7)
        drive.abort(cut.request_id)
    drive.require_idle()
    assert drive.scheduler.stats().finished_total == {"length": 1, "abort": 2}


def test_200_aborts_leave_the_blocks_as_they_were():
    """ABT-01"""
    drive = SchedulerDrive(depth=1)
    for number in range(200):
        request = drive.add([number % 7] * (1 + number % 30), max_tokens=50)
        for _ in range(number % 5):
            drive.step()
        drive.abort(request.request_id)
    drive.run()
    drive.require_idle()


def test_blocks_and_row_of_an_aborted_sequence_return_with_its_last_step_in_flight():
    """ABT-03"""
    drive = SchedulerDrive(depth=1)
    request = drive.add([1] * 7, max_tokens=50)
    drive.submit()
    drive.submit()
    drive.abort(request.request_id)
    assert drive.blocks.usage().used == (2,)
    drive.commit()
    assert drive.blocks.usage().used == (2,)
    drive.commit()
    drive.require_idle()


def test_survivors_of_random_aborts_match_their_solo_runs():
    """ABT-03: 200 rounds of 8 streams in a tiny cache, half of them aborted at some step."""
    drive = SchedulerDrive([GroupLayout(num_blocks=20, block_size=4)], depth=1)
    survivors = []
    for number in range(200):
        streams = [drive.add([number % 11, i] * (1 + (number + i) % 5), max_tokens=8) for i in range(8)]
        for i in range(4):
            for _ in range((number * 7 + i) % 4):
                drive.step()
            drive.abort(streams[2 * i].request_id)
        survivors += streams[1::2]
    drive.run()
    for request in survivors:
        assert drive.output(request) == null_continuation(request.prompt_token_ids, max_tokens=8, vocab_size=32)
    drive.require_idle()


def test_a_stop_string_found_by_the_client_is_counted_as_stop():
    """MET-01: finish reasons add up."""
    drive = SchedulerDrive()
    requests = [drive.add([i], max_tokens=9) for i in range(3)]
    drive.step()
    drive.scheduler.abort(requests[0].request_id)
    drive.scheduler.abort(requests[1].request_id, 0, FinishReason.STOP)
    drive.run()
    assert drive.scheduler.stats().finished_total == {"abort": 1, "stop": 1, "length": 1}
    assert drive.scheduler.stats().num_running == drive.scheduler.stats().num_waiting == 0


def test_an_aborted_swapped_request_frees_its_host_blocks():
    drive = SchedulerDrive([GroupLayout(num_blocks=12, block_size=4, num_host_blocks=20)])
    requests = [drive.add([i] * 6, max_tokens=26) for i in range(3)]
    while not drive.scheduler.stats().swapped_out_blocks_total:
        drive.step()
    for request in requests:
        drive.abort(request.request_id)
    drive.run()
    drive.require_idle()


def test_one_choice_of_a_beam_search_cannot_be_aborted():
    drive = SchedulerDrive()
    search = drive.add([1, 2], 4, beam=BeamSearchParams(beam_width=2, max_tokens=4))
    drive.step()
    drive.abort(search.request_id, 0)
    drive.run()
    assert len(drive.output(search, 0)) == len(drive.output(search, 1)) == 4
