"""Random arrivals, forks, beams, aborts, deadlines and preemptions: whatever happens, every output is the solo one."""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pageport.cache.layout import GroupLayout
from pageport.errors import RequestTooLong
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.request import FinishReason
from pageport.testing.null_runner import fingerprint, null_continuation, null_logprobs
from pageport.testing.scheduler_drive import SchedulerDrive

# Shrinking one failure takes minutes: add Phase.shrink to look into it.
PHASES = [Phase.generate]
VOCABULARY = 32
STOPS = frozenset({5})
# Few prompts that share beginnings, so that the prefix index matters.
PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20][:n] for n in range(1, 21)]
PROMPTS += [[1, 2, 3, 4, 9, 9, 9, 9, 9][:n] for n in (5, 8, 9)]


def solo_beams(prompt, max_tokens, width, num_return):
    drive = SchedulerDrive([GroupLayout(num_blocks=200, block_size=4)])
    params = BeamSearchParams(beam_width=width, max_tokens=max_tokens, num_return=num_return)
    drive.add(prompt, max_tokens, beam=params, stop_token_ids=STOPS)
    drive.run()
    return {index: tokens for (_, index), tokens in drive.tokens.items()}


class AnyHistory(RuleBasedStateMachine):
    @initialize(
        depth=st.sampled_from([0, 1]),
        num_blocks=st.integers(10, 18),
        window=st.sampled_from([None, 5]),
        host_blocks=st.sampled_from([0, 0, 6, 40]),
        policy=st.sampled_from(["fcfs", "priority"]),
        max_num_seqs=st.sampled_from([2, 4, 8]),
        budget=st.sampled_from([5, 9, 16]),
        caching=st.booleans(),
    )
    def open(self, depth, num_blocks, window, host_blocks, policy, max_num_seqs, budget, caching):
        groups = [GroupLayout(num_blocks=num_blocks, block_size=4, num_host_blocks=host_blocks)]
        if window:
            sliding = {"sliding_window": window, "num_host_blocks": host_blocks}
            groups.append(GroupLayout(num_blocks=num_blocks + 8, block_size=2, **sliding))
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget, "scheduling_policy": policy}
        self.drive = SchedulerDrive(
            groups, depth=depth, max_model_len=40, enable_prefix_caching=caching, settings=limits
        )
        self.max_rows = min(max_num_seqs, budget)
        self.aborted = set()
        self.num_searches = 0

    @rule(
        prompt=st.sampled_from(PROMPTS),
        max_tokens=st.sampled_from([1, 2, 10, 18, 24]),
        n=st.sampled_from([1, 1, 2, 4]),
        count=st.integers(1, 4),
        priority=st.integers(0, 2),
        timeout=st.sampled_from([None, None, None, 3.0]),
        scored=st.sampled_from([False, False, True]),
        on_host=st.sampled_from([False, False, True]),
        seed=st.integers(0, 3),
    )
    def arrive(self, prompt, max_tokens, n, count, priority, timeout, scored, on_host, seed):
        deadline = None if timeout is None else self.drive.clock() + timeout
        for i in range(count):
            self.drive.add(
                prompt,
                max_tokens,
                seed=seed + i,
                num_sequences=n,
                priority=priority,
                deadline=deadline,
                wants_prompt_logprobs=scored,
                needs_host_token=on_host,
                stop_token_ids=STOPS,
            )

    @precondition(lambda self: self.num_searches < 3)
    @rule(prompt=st.sampled_from(PROMPTS[:12]), max_tokens=st.integers(1, 8), width=st.integers(1, 3))
    def arrive_beams(self, prompt, max_tokens, width):
        self.num_searches += 1
        width = min(width, self.max_rows)
        params = BeamSearchParams(beam_width=width, max_tokens=max_tokens, num_return=max(1, width - 1))
        with suppress(RequestTooLong):  # a small cache refuses the worst case of a group
            self.drive.add(prompt, max_tokens, beam=params, stop_token_ids=STOPS)

    @precondition(lambda self: self.drive.requests)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data, whole):
        request = self.drive.requests[data.draw(st.sampled_from(sorted(self.drive.requests)))]
        index = None if whole else data.draw(st.integers(0, request.num_sequences - 1))
        for sequence in request.sequences:
            if index is None or (sequence.index == index and request.beam is None):
                self.aborted.add((request.request_id, sequence.index))
        self.drive.abort(request.request_id, index)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.drive.step()

    @rule()
    def submit_without_commit(self):
        self.drive.submit()

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def wait(self, seconds):
        self.drive.clock.now += seconds

    @invariant()
    def every_account_balances(self):
        if hasattr(self, "drive"):
            self.drive.scheduler.check()

    def teardown(self):
        if not hasattr(self, "drive"):
            return
        self.drive.run()
        self.drive.require_idle()
        for request in self.drive.requests.values():
            if request.beam is not None:
                self.judge_beams(request)
            else:
                for index in range(request.num_sequences):
                    self.judge(request, index)
            self.judge_scores(request)

    def judge(self, request, index):
        solo = null_continuation(
            request.prompt_token_ids,
            max_tokens=min(request.max_tokens, 40 - len(request.prompt_token_ids)),
            vocab_size=VOCABULARY,
            index=index,
            seed=request.sampling.seed,
            stop_token_ids=STOPS,
        )
        told, end = self.drive.output(request, index), self.drive.ends.get((request.request_id, index))
        if end in (FinishReason.STOP, FinishReason.LENGTH):
            assert told == solo
        else:
            assert told == solo[: len(told)]
            assert end is FinishReason.TIMEOUT or (request.request_id, index) in self.aborted

    def judge_beams(self, request):
        if (request.request_id, 0) in self.aborted and (request.request_id, 0) not in self.drive.ends:
            return
        best = solo_beams(request.prompt_token_ids, request.max_tokens, request.num_sequences, request.beam.num_return)
        told = {i: self.drive.tokens[request.request_id, i] for i in range(request.beam.num_return)}
        assert told == best

    def judge_scores(self, request):
        scores = self.drive.prompt_logprobs.get(request.request_id)
        if scores is None:
            return
        prompt = request.prompt_token_ids
        expected = [null_logprobs(fingerprint(prompt[:p]), VOCABULARY)[prompt[p]] for p in range(1, len(prompt))]
        assert scores[0] is None
        assert [score.logprobs[0] for score in scores[1:]] == expected


def run_histories(count):
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        AnyHistory,
        settings=settings(
            max_examples=count,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
            phases=PHASES,
            suppress_health_check=checks,
        ),
    )


def test_200_histories_of_50_operations():
    run_histories(200)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_2000_histories_of_50_operations():
    run_histories(2000)
