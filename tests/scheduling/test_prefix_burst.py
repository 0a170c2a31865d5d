"""Prompts that arrive together and share a prefix: it is computed once, while the others wait for it."""

import pytest

from pageport.cache.layout import GroupLayout
from pageport.testing.scheduler_drive import SchedulerDrive

BLOCKS = (GroupLayout(num_blocks=256, block_size=4),)
PREFIX = [k % 7 for k in range(40)]


def burst(drive: SchedulerDrive, count: int = 6, **fields):
    return [drive.add([*PREFIX, k % 10, k // 10, 8], **fields) for k in range(count)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("step_tokens", [16, 64, 512])
def test_shared_prefix_of_a_burst_is_computed_once(depth, step_tokens):
    drive = SchedulerDrive(BLOCKS, depth=depth, settings={"max_num_batched_tokens": step_tokens})
    requests = burst(drive)
    drive.run()
    prompt_tokens = sum(count for batch in drive.batches for count in batch.counts[batch.num_decodes :])
    assert prompt_tokens == len(PREFIX) + 3 * len(requests)
    assert [request.num_cached_tokens for request in requests] == [0] + [len(PREFIX)] * 5
    drive.require_idle()


def test_prefix_burst_gives_the_tokens_of_requests_alone():
    together, alone = (SchedulerDrive(BLOCKS, settings={"max_num_batched_tokens": 64}) for _ in range(2))
    requests = burst(together)
    together.run()
    for k, request in enumerate(requests):
        single = alone.add([*PREFIX, k % 10, k // 10, 8])
        alone.run()
        assert together.output(request) == alone.output(single)


def test_unrelated_request_starts_before_those_that_await_a_prefix():
    drive = SchedulerDrive(BLOCKS, settings={"max_num_batched_tokens": 512})
    burst(drive)
    other = drive.add([7, 8, 9])
    drive.step()
    assert drive.first_token_step[other.request_id] == 1


def test_waiting_prompt_goes_on_alone_when_the_one_it_awaits_is_aborted():
    drive = SchedulerDrive(BLOCKS, settings={"max_num_batched_tokens": 16})
    first, second = burst(drive, 2)
    drive.step()
    drive.abort(first.request_id)
    drive.run()
    assert len(drive.output(second)) == 4
    assert second.num_cached_tokens == 16
    drive.require_idle()


@pytest.mark.parametrize("fields", [{"wants_prompt_logprobs": True}, {"cache_keys": {"salt": "other"}}])
def test_prompt_that_cannot_share_does_not_wait(fields):
    drive = SchedulerDrive(BLOCKS, settings={"max_num_batched_tokens": 512})
    burst(drive, 1)
    burst(drive, 1, **fields)
    assert len(drive.step().rows) == 2


def test_no_prompt_waits_without_prefix_caching():
    drive = SchedulerDrive(BLOCKS, enable_prefix_caching=False, settings={"max_num_batched_tokens": 512})
    burst(drive)
    assert len(drive.step().rows) == 6


def test_long_queue_behind_one_prefix_is_not_searched_to_its_end():
    drive = SchedulerDrive(BLOCKS, settings={"max_num_batched_tokens": 512})
    burst(drive, 100)
    other = drive.add([7, 8, 9])
    drive.step()
    assert other.request_id not in drive.first_token_step
    drive.run()
    assert len(drive.output(other)) == 4
