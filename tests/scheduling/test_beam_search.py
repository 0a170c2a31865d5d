"""Beam search in the scheduler: transformers' results, shared blocks, blocks kept back."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pageport.cache.layout import GroupLayout
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.batch import StepResult, TokenLogprobs
from pageport.scheduling.beam_search import BeamGroup, num_candidates
from pageport.scheduling.request import FinishReason, Request, Sequence
from pageport.testing.null_runner import fingerprint, null_continuation, null_logprobs
from pageport.testing.scheduler_drive import SchedulerDrive

# After it, stopping early changes the result.
PROMPT = [1, 7, 1, 17]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=24,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.7,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def make_group(params, max_tokens, stop_token_ids):
    request = Request(
        request_id="beams",
        prompt_token_ids=PROMPT,
        max_tokens=max_tokens,
        sampling=None,
        stop_token_ids=stop_token_ids,
        beam=params,
        num_sequences=params.beam_width,
    )
    limit = len(PROMPT) + max_tokens
    return BeamGroup(request, make_sequence(request, PROMPT, limit), [], ())


def make_sequence(request, token_ids, token_limit):
    return Sequence(sequence_id=0, request=request, index=0, token_ids=list(token_ids), token_limit=token_limit)


def search(score, group):
    """Run the group to its end with ``score(token_ids)``, the log-probability of every next token."""
    count = num_candidates(group.params.beam_width, len(group.request.stop_token_ids))
    while True:
        candidates = []
        for beam in group.beams:
            logprobs = score(beam.sequence.token_ids)
            order = sorted(range(len(logprobs)), key=lambda token_id: -logprobs[token_id])[:count]
            token_ids = [order[0], *order]
            candidates.append(TokenLogprobs(token_ids, [logprobs[t] for t in token_ids], token_ids))
        continuations = group.advance(candidates)
        if not continuations:
            return group.best()
        limit = group.beams[0].sequence.token_limit
        group.beams = [
            type(group.beams[0])(make_sequence(group.request, [*c.parent.token_ids, c.token_id], limit), c.logprob)
            for c in continuations
        ]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.7, 2.0])
@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("ends", [(), (5,), (2, 5, 11, 17)])
def test_hypotheses_are_those_of_transformers(model, width, length_penalty, early_stopping, ends):
    params = BeamSearchParams(
        beam_width=width, max_tokens=9, length_penalty=length_penalty, early_stopping=early_stopping
    )
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([PROMPT]),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=9,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            eos_token_id=list(ends) or None,
            do_sample=False,
        )
        best = search(
            lambda token_ids: model(torch.tensor([token_ids])).logits[0, -1].log_softmax(-1).tolist(),
            make_group(params, 9, frozenset(ends)),
        )
    assert [h.token_ids for h in best] == [cut(row.tolist()[len(PROMPT) :], ends) for row in expected]


def test_one_beam_is_greedy_search():
    def score(token_ids):
        return null_logprobs(fingerprint(token_ids), 32)

    best = search(score, make_group(BeamSearchParams(beam_width=1, max_tokens=6), 6, frozenset()))
    greedy = list(PROMPT)
    for _ in range(6):
        logprobs = score(greedy)
        greedy.append(logprobs.index(max(logprobs)))
    assert [h.token_ids for h in best] == [greedy[len(PROMPT) :]]


def cut(token_ids, ends):
    for place, token_id in enumerate(token_ids):
        if token_id in ends:
            return token_ids[: place + 1]
    return token_ids


def run_search(drive, prompt, max_tokens, width, **options):
    params = BeamSearchParams(beam_width=width, max_tokens=max_tokens, **options)
    request = drive.add(prompt, max_tokens, beam=params, stop_token_ids=frozenset({5}))
    drive.run()
    return request


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prompt_length", [1, 7, 8, 37])
def test_the_scheduler_finds_what_the_search_alone_finds(depth, prompt_length):
    drive = SchedulerDrive(depth=depth)
    prompt = [i % 30 for i in range(prompt_length)]
    request = run_search(drive, prompt, 12, 4)
    params = BeamSearchParams(beam_width=4, max_tokens=12)
    group = make_group(params, 12, frozenset({5}))
    group.request.prompt_token_ids = prompt
    group.beams = [type(group.beams[0])(make_sequence(group.request, prompt, prompt_length + 12), 0.0)]
    best = search(lambda token_ids: null_logprobs(fingerprint(token_ids), 32), group)
    assert [drive.output(request, i) for i in range(4)] == [h.token_ids for h in best]
    assert [drive.cumulative_logprobs["0", i] for i in range(4)] == [h.logprob for h in best]
    drive.require_idle()


def test_beams_compute_the_prompt_once_and_copy_at_most_one_block_an_extra_child():
    drive = SchedulerDrive([GroupLayout(num_blocks=100, block_size=16)], max_model_len=600)
    request = run_search(drive, [i % 30 for i in range(500)], 20, 4)
    decodes = sum(batch.num_decodes for batch in drive.batches)
    assert drive.runner.num_tokens_computed == 500 + decodes
    extra_children = 3 * (1 + decodes // 4)
    assert 0 < drive.runner.num_blocks_copied <= extra_children
    assert len(drive.output(request)) == 20 or drive.output(request)[-1] == 5


def test_only_the_hypotheses_asked_for_are_told():
    drive = SchedulerDrive()
    run_search(drive, [1, 2, 3], 6, 4, num_return=2)
    assert sorted(drive.tokens) == [("0", 0), ("0", 1)]
    assert sum(drive.scheduler.stats().finished_total.values()) == 2
    assert drive.scheduler.stats().generation_tokens_total == sum(map(len, drive.tokens.values()))


def test_a_hypothesis_says_how_it_ended():
    drive = SchedulerDrive()
    request = run_search(drive, [1, 2, 3], 30, 4)
    for index, sequence in enumerate(request.sequences):
        stopped = drive.output(request, index)[-1] == 5
        assert sequence.finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert sequence.stop_token_id == (5 if stopped else None)


def test_nothing_is_told_before_the_end():
    drive = SchedulerDrive()
    params = BeamSearchParams(beam_width=2, max_tokens=5)
    drive.add([1, 2, 3], 5, beam=params)
    for _ in range(4):
        drive.step()
        assert drive.tokens == {}
    drive.step()
    assert {key: len(tokens) for key, tokens in drive.tokens.items()} == {("0", 0): 5, ("0", 1): 5}


@pytest.mark.parametrize("depth", [0, 1])
def test_beams_are_never_preempted_and_others_give_way(depth):
    drive = SchedulerDrive([GroupLayout(num_blocks=24, block_size=4)], depth=depth)
    search = drive.add([1] * 10, 24, beam=BeamSearchParams(beam_width=2, max_tokens=24))
    others = [drive.add([9 + i] * 4, max_tokens=26) for i in range(4)]
    drive.run()
    assert all(sequence.num_preemptions == 0 for sequence in search.sequences)
    assert drive.scheduler.stats().preemptions_total > 0
    for other in others:
        assert drive.output(other) == null_continuation(other.prompt_token_ids, max_tokens=26, vocab_size=32)
    drive.require_idle()


def test_beams_start_only_when_their_worst_case_fits():
    drive = SchedulerDrive([GroupLayout(num_blocks=18, block_size=4)])
    running = drive.add([1] * 4, max_tokens=8)
    drive.step()
    # The prompt's 2 full blocks once, 8 more for each beam: every block there is.
    search = drive.add([2] * 8, 32, beam=BeamSearchParams(beam_width=2, max_tokens=32))
    while not drive.output(search):
        started = bool(drive.scheduler._roster.beam_groups)
        assert not started or len(drive.output(running)) == 8
        drive.step()


def test_blocks_that_beams_may_come_to_need_are_kept_from_others():
    # The prompt's full block once and 5 more for each of 3 beams: 16 of 20 blocks, used or not.
    drive = SchedulerDrive([GroupLayout(num_blocks=20, block_size=4)])
    search = drive.add([1] * 4, 20, beam=BeamSearchParams(beam_width=3, max_tokens=20))
    other = drive.add([2] * 4, max_tokens=28)
    while not drive.output(search):
        assert len(drive.output(other)) <= 3 * 4 + 1
        drive.step()
    drive.run()
    assert drive.output(other) == null_continuation([2] * 4, max_tokens=28, vocab_size=32)
    assert other.sequences[0].num_preemptions == 0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("depth", [0, 1])
def test_an_aborted_search_frees_everything(num_steps, depth):
    drive = SchedulerDrive(depth=depth)
    drive.add([1] * 20, 9, beam=BeamSearchParams(beam_width=3, max_tokens=9))
    for _ in range(num_steps):
        drive.step()
    drive.abort("0")
    drive.run()
    drive.require_idle()
    assert drive.tokens == {}


def test_an_error_in_one_beam_ends_the_search_once():
    drive = SchedulerDrive()
    drive.add([1] * 3, 9, beam=BeamSearchParams(beam_width=3, max_tokens=9, num_return=2))
    drive.step()
    batch = drive.scheduler.schedule()
    result = drive.runner.submit(batch).result()
    broken = StepResult(token_ids=result.token_ids, logprobs=result.logprobs, errors={1: "logits are NaN"})
    updates = drive.scheduler.commit(batch, broken)
    assert [(u.sequence.index, u.error) for u in updates] == [(0, "logits are NaN"), (1, "logits are NaN")]
    drive.require_idle()


def test_a_deadline_ends_a_search():
    drive = SchedulerDrive()
    params = BeamSearchParams(beam_width=3, max_tokens=9, num_return=1)
    drive.add([1] * 3, 9, beam=params, deadline=1.0)
    drive.step()
    drive.step()
    drive.clock.now = 1.0
    drive.run()
    assert drive.ends == {("0", 0): FinishReason.TIMEOUT}
    drive.require_idle()
