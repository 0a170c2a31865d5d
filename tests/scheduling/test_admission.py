"""What may enter, what is refused, and who goes first."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.errors import EngineOverloaded, InvalidParameter, RequestTooLong
from pageport.sampling.beam import BeamSearchParams
from pageport.testing.null_runner import null_continuation
from pageport.testing.scheduler_drive import SchedulerDrive


def small_drive(num_blocks=10, **options):
    return SchedulerDrive([GroupLayout(num_blocks=num_blocks, block_size=4)], **options)


def test_a_prompt_larger_than_the_cache_is_refused_with_the_arithmetic_and_others_finish():
    """LIM-03: never an endless wait."""
    drive = small_drive(num_blocks=10)
    before = drive.add([1, 2, 3])
    with pytest.raises(RequestTooLong, match=r"Prompt \(100\) and max_tokens \(4\) add up to 104 .* holds 40 of one"):
        drive.add([7] * 100)
    behind = drive.add([4, 5, 6])
    drive.run()
    assert len(drive.output(before)) == len(drive.output(behind)) == 4


def test_prompt_that_fits_with_an_output_that_does_not_is_refused():
    """LIM-03: prompt fits, prompt + max_tokens does not."""
    drive = small_drive(num_blocks=10)
    with pytest.raises(RequestTooLong, match="Lower max_tokens to 10") as refused:
        drive.add([7] * 30, max_tokens=11)
    assert refused.value.parameter == "max_tokens"


def test_request_that_needs_every_block_runs():
    drive = small_drive(num_blocks=10)
    request = drive.add([7] * 30, max_tokens=10)
    drive.run()
    assert drive.output(request) == null_continuation([7] * 30, max_tokens=10, vocab_size=32)


def test_a_prompt_that_fills_the_context_is_refused():
    drive = small_drive(max_model_len=20)
    with pytest.raises(RequestTooLong, match="has 20 tokens and the context ends at 20"):
        drive.add([7] * 20)


def test_an_empty_prompt_is_refused():
    with pytest.raises(InvalidParameter, match="no tokens"):
        small_drive().add([])


def test_a_request_id_in_use_is_refused_and_free_again_later():
    drive = small_drive()
    drive.add([1], request_id="a")
    with pytest.raises(InvalidParameter, match="'a' is in use"):
        drive.add([1], request_id="a")
    drive.run()
    drive.scheduler.add(drive.requests["a"])


def test_more_waiting_requests_than_the_queue_holds_are_refused():
    drive = small_drive(settings={"max_queued_requests": 2})
    drive.add([1])
    drive.add([2])
    with pytest.raises(EngineOverloaded, match="2 requests are waiting"):
        drive.add([3])
    drive.step()
    drive.add([3])


def test_more_beams_than_rows_are_refused():
    drive = small_drive(settings={"max_num_seqs": 2})
    with pytest.raises(InvalidParameter, match="beam_width is 3; at most 2"):
        drive.add([1], beam=BeamSearchParams(beam_width=3, max_tokens=4))


def test_beams_whose_worst_case_exceeds_the_cache_are_refused():
    # The prompt's 2 full blocks once, and for each beam 5 blocks of 10 + 16 tokens.
    drive = small_drive(num_blocks=21)
    with pytest.raises(RequestTooLong, match=r"4 beams of 26 tokens .* may need 22 blocks .* which has 21"):
        drive.add([7] * 10, 16, beam=BeamSearchParams(beam_width=4, max_tokens=16))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("depth", [0, 1])
def test_streams_that_exceed_the_cache_many_times_all_finish(policy, depth):
    """SCH-01: the drive fails when requests wait and nothing runs."""
    drive = SchedulerDrive(depth=depth, settings={"max_num_seqs": 40, "scheduling_policy": policy})
    requests = [drive.add([i] * (1 + 37 * i % 90), max_tokens=30, priority=i % 3) for i in range(40)]
    drive.run()
    assert all(len(drive.output(request)) == 30 for request in requests)
    drive.require_idle()


def test_a_blocked_head_is_not_overtaken():
    drive = small_drive(num_blocks=10, settings={"max_num_batched_tokens": 64})
    running = drive.add([1] * 20, max_tokens=10)
    drive.step()
    large = drive.add([2] * 28, max_tokens=2)
    small = drive.add([3], max_tokens=2)
    drive.run()
    first = drive.first_token_step
    assert first[running.request_id] < first[large.request_id] <= first[small.request_id]


def test_more_urgent_requests_start_first_under_the_priority_policy():
    drive = small_drive(settings={"max_num_seqs": 1, "scheduling_policy": "priority"})
    for priority in (2, 0, 1):
        drive.add([1], request_id=f"priority {priority}", priority=priority)
    drive.run()
    steps = drive.first_token_step
    assert sorted(steps, key=lambda request_id: steps[request_id]) == ["priority 0", "priority 1", "priority 2"]


def test_priorities_do_nothing_under_fcfs():
    drive = small_drive(settings={"max_num_seqs": 1})
    drive.add([1], request_id="first", priority=9)
    drive.add([1], request_id="second", priority=0)
    drive.run()
    assert drive.first_token_step["first"] < drive.first_token_step["second"]


def test_a_waiting_head_is_not_hashed_again_in_every_step(monkeypatch):
    drive = small_drive(num_blocks=10)
    drive.add([1] * 24, max_tokens=12)
    drive.step()
    drive.step()
    drive.add([2] * 28, max_tokens=2)
    opened = []
    monkeypatch.setattr(drive.blocks, "open", lambda *args, **kwargs: opened.append(args))
    monkeypatch.setattr(drive.blocks, "free", lambda *args: None)
    monkeypatch.setattr(drive.scheduler._admission, "fits", lambda *args: False)
    for _ in range(7):
        drive.scheduler.commit(batch := drive.scheduler.schedule(), drive.runner.submit(batch).result())
    assert len(opened) == 1
