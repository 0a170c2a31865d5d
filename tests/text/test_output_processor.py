"""``OutputProcessor``: the engine's tokens as text, with stop strings, for streams and results alike."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.engine.messages import EngineRequest, SequenceOutput
from pageport.engine.output_processor import OutputProcessor
from pageport.engine.outputs import ChoiceDelta, Logprob
from pageport.errors import InvalidParameter
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.scheduling.batch import TokenLogprobs
from pageport.text.tokenizer import Tokenizer

from .conftest import build_byte_level

EOS = 258


def request_of(prompt: list[int] | None = None, beam: BeamSearchParams | None = None, **params: Any) -> EngineRequest:
    sampling = SamplingParams(**params)
    return EngineRequest(
        request_id="r", prompt_token_ids=prompt or [97], sampling=sampling, max_tokens=99, seed=0, beam=beam
    )


def output_of(tokens: str | list[int], index: int = 0, finish: str | None = None, **more: Any) -> SequenceOutput:
    token_ids = list(tokens.encode()) if isinstance(tokens, str) else tokens
    return SequenceOutput(request_id="r", index=index, token_ids=token_ids, finish_reason=finish, **more)


def run(tokenizer: Tokenizer, outputs: list[SequenceOutput], **params: Any) -> tuple[list[ChoiceDelta], Any]:
    processor = OutputProcessor(tokenizer)
    processor.add(request_of(**params))
    return [delta for output in outputs for delta in processor.process([output])], processor.snapshot("r")


def one_by_one(text: str | list[int], **last: Any) -> list[SequenceOutput]:
    ids = list(text.encode()) if isinstance(text, str) else text
    outputs = [output_of([token_id]) for token_id in ids]
    return [*outputs[:-1], output_of([ids[-1]], **last)]


def logprobs_of(*chosen: float) -> list[TokenLogprobs]:
    return [TokenLogprobs([120, 121], [logprob, -9.0], [2, 1]) for logprob in chosen]


def test_deltas_join_to_the_snapshot(byte_level: Tokenizer) -> None:
    """STP-03: streams and results are the same text."""
    deltas, result = run(byte_level, one_by_one("na\u00efve \U0001f525", finish="length"))
    assert "".join(delta.text for delta in deltas) == result.outputs[0].text == "na\u00efve \U0001f525"
    assert [i for delta in deltas for i in delta.token_ids] == result.outputs[0].token_ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
    assert result.finished


def test_a_stop_string_ends_the_choice_and_the_engine_is_told_once(byte_level: Tokenizer) -> None:
    """STP-01."""
    processor = OutputProcessor(byte_level)
    processor.add(request_of(stop=["three"]))
    deltas = [d for output in one_by_one("two three four") for d in processor.process([output])]
    assert "".join(delta.text for delta in deltas) == "two "
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "three")
    assert bytes(i for delta in deltas for i in delta.token_ids) == b"two three"
    assert processor.take_aborts() == [("r", 0)]
    assert processor.take_aborts() == []
    assert processor.is_finished("r")


@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "x;y;z")])
def test_the_cut_is_exact_within_a_token(byte_level: Tokenizer, include: bool, text: str) -> None:
    """STP-04: token 257 is "z?", and it counts as generated."""
    outputs = one_by_one([*b"x;y;", 257, *b"more"])
    _, result = run(byte_level, outputs, stop=";y;z", include_stop_str_in_output=include)
    assert result.outputs[0].text == text
    assert result.outputs[0].token_ids == [*b"x;y;", 257]


def test_tokens_after_a_stop_string_in_one_step_are_not_delivered(byte_level: Tokenizer) -> None:
    outputs = [output_of("ab.cd", logprobs=logprobs_of(-1, -1, -1, -1, -1))]
    deltas, result = run(byte_level, outputs, stop=".", logprobs=0)
    assert (deltas[0].text, deltas[0].token_ids, len(deltas[0].logprobs or [])) == ("ab", [*b"ab."], 3)
    assert result.outputs[0].cumulative_logprob == -3


def test_a_stop_string_that_the_engines_own_end_completes_needs_no_abort(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    processor.add(request_of(stop="b"))
    (delta,) = processor.process([output_of("ab", finish="length")])
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a", "stop", "b")
    assert processor.take_aborts() == []


def test_withheld_text_comes_at_the_end(byte_level: Tokenizer) -> None:
    deltas, _ = run(byte_level, one_by_one("one thr", finish="length"), stop="three")
    assert "".join(delta.text for delta in deltas) == "one thr"


def test_stop_strings_do_not_count_before_min_tokens(byte_level: Tokenizer) -> None:
    """STP-07."""
    _, result = run(byte_level, one_by_one("a.b.c.d", finish="length"), stop=".", min_tokens=4)
    assert (result.outputs[0].text, result.outputs[0].token_ids) == ("a.b.c", [*b"a.b.c."])


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_stream_that_ends_within_a_character_shows_it_once(byte_level: Tokenizer, cut: int) -> None:
    """DET-02."""
    deltas, result = run(byte_level, one_by_one(list("\U0001f525".encode())[:cut], finish="length"))
    assert "".join(delta.text for delta in deltas) == result.outputs[0].text == "\ufffd"


def test_the_models_end_token_is_kept_as_a_token_and_never_shown(byte_level: Tokenizer) -> None:
    """STP-06."""
    outputs = one_by_one([104, EOS], finish="stop", stop_token_id=EOS)
    _, result = run(byte_level, outputs, skip_special_tokens=False)
    (choice,) = result.outputs
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("h", [104, EOS], None)


@pytest.mark.parametrize(("stop_token_id", "text"), [(105, "hi"), (EOS, "h")])
def test_a_stop_token_of_the_users_is_shown_unless_special(
    byte_level: Tokenizer, stop_token_id: int, text: str
) -> None:
    outputs = one_by_one([104, stop_token_id], finish="stop", stop_token_id=stop_token_id)
    _, result = run(byte_level, outputs, stop_token_ids=[105, EOS])
    (choice,) = result.outputs
    assert (choice.text, choice.token_ids, choice.stop_reason) == (text, [104, stop_token_id], stop_token_id)


def test_logprobs_are_by_token_id_with_the_chosen_first(byte_level: Tokenizer) -> None:
    deltas, result = run(byte_level, [output_of("x", finish="length", logprobs=logprobs_of(-0.5))], logprobs=1)
    expected = [{120: Logprob(-0.5, 2, "x"), 121: Logprob(-9.0, 1, "y")}]
    assert deltas[0].logprobs == result.outputs[0].logprobs == expected
    assert list(expected[0]) == [120, 121]


def test_prompt_logprobs_and_cached_tokens_come_with_the_first_output(byte_level: Tokenizer) -> None:
    first = output_of("x", prompt_logprobs=[None, *logprobs_of(-1.0)], num_cached_tokens=16)
    deltas, result = run(byte_level, [first, output_of("y", finish="length")])
    assert deltas[0].prompt_logprobs == [None, {120: Logprob(-1.0, 2, "x"), 121: Logprob(-9.0, 1, "y")}]
    assert (deltas[0].num_cached_tokens, deltas[1].num_cached_tokens, deltas[1].prompt_logprobs) == (16, None, None)
    assert (result.prompt_logprobs, result.num_cached_tokens) == (deltas[0].prompt_logprobs, 16)


def test_choices_of_one_request_stand_apart(byte_level: Tokenizer) -> None:
    outputs = [output_of("a.", 0), output_of("b", 1), output_of("zz", 0), output_of("c", 1, finish="length")]
    deltas, result = run(byte_level, outputs, n=2, stop=".")
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "a"), (1, "b"), (1, "c")]
    assert [choice.text for choice in result.outputs] == ["a", "bc"]


def test_a_request_with_one_choice_running_is_not_finished(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    processor.add(request_of(n=2))
    processor.process([output_of("a", 0, finish="length")])
    assert not processor.is_finished("r")
    processor.process([output_of("b", 1, finish="abort")])
    assert processor.is_finished("r")


def test_best_of_holds_everything_and_returns_the_best_by_mean_logprob(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    processor.add(request_of(n=2, best_of=3, logprobs=0))
    assert processor.process([output_of("aaaa", 0, "length", logprobs=logprobs_of(-1, -1, -1, -1))]) == []
    assert processor.process([output_of("b", 1, "length", logprobs=logprobs_of(-3), num_cached_tokens=7)]) == []
    deltas = processor.process([output_of("c", 2, "length", logprobs=logprobs_of(-0.5))])
    assert [(delta.index, delta.text, delta.finish_reason) for delta in deltas] == [
        (0, "c", "length"),
        (1, "aaaa", "length"),
    ]
    assert deltas[0].num_cached_tokens == 7
    assert [choice.text for choice in processor.snapshot("r").outputs] == ["c", "aaaa"]


def test_logprobs_that_only_rank_are_not_shown(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    sampling = SamplingParams(n=1, best_of=2, logprobs=0)
    processor.add(
        EngineRequest(
            request_id="r", prompt_token_ids=[1], sampling=sampling, max_tokens=9, seed=0, hides_logprobs=True
        )
    )
    processor.process([output_of("a", 0, "length", logprobs=logprobs_of(-2))])
    (delta,) = processor.process([output_of("b", 1, "length", logprobs=logprobs_of(-1))])
    assert (delta.text, delta.logprobs) == ("b", None)


def test_a_failed_sample_ranks_last(byte_level: Tokenizer) -> None:
    outputs = [output_of([], 0, "error", error="NaN"), output_of("b", 1, "length", logprobs=logprobs_of(-99))]
    _, result = run(byte_level, outputs, n=1, best_of=2, logprobs=0)
    assert [choice.text for choice in result.outputs] == ["b"]


def test_an_error_reaches_delta_and_result(byte_level: Tokenizer) -> None:
    deltas, result = run(byte_level, [output_of([], 0, "error", error="The logits are NaN.")])
    assert (deltas[0].error, deltas[0].finish_reason) == ("The logits are NaN.", "error")
    assert result.error == "The logits are NaN."


def test_beams_come_whole_with_their_scores(byte_level: Tokenizer) -> None:
    beam = BeamSearchParams(beam_width=2, max_tokens=9)
    outputs = [
        output_of([104, EOS], 0, "stop", stop_token_id=EOS, cumulative_logprob=-0.5),
        output_of("ho", 1, "length", cumulative_logprob=-0.7),
    ]
    _, result = run(byte_level, outputs, beam=beam, n=2)
    assert [(c.text, c.cumulative_logprob) for c in result.outputs] == [("h", -0.5), ("ho", -0.7)]


def test_without_detokenizing_there_are_tokens_only(byte_level: Tokenizer) -> None:
    for tokenizer, params in ((byte_level, {"detokenize": False}), (None, {})):
        processor = OutputProcessor(tokenizer)
        processor.add(request_of(**params))
        (delta,) = processor.process([output_of("ab", finish="length")])
        assert (delta.text, delta.token_ids) == ("", [97, 98])


def test_outputs_of_forgotten_requests_are_dropped(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    processor.add(request_of())
    with pytest.raises(InvalidParameter, match="'r' runs already"):
        processor.add(request_of())
    processor.forget("r")
    processor.forget("r")
    assert processor.process([output_of("a")]) == []
    assert processor.is_finished("r")


def test_a_snapshot_does_not_change_later(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level)
    state = processor.add(request_of(prompt=[97, 98]), "ab")
    processor.process([output_of("x")])
    early = state.snapshot()
    processor.process([output_of("y", finish="length")])
    assert (early.outputs[0].text, early.outputs[0].token_ids, early.finished) == ("x", [120], False)
    assert (early.prompt, early.prompt_token_ids) == ("ab", [97, 98])
    assert state.snapshot().outputs[0].text == "xy"


_TOKENIZER = Tokenizer(build_byte_level((("a", "."), (".", "b"))))


@given(
    tokens=st.lists(st.sampled_from([97, 98, 46, 256, 257, 0xC3, 0xA9]), min_size=1, max_size=20),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    stops=st.lists(st.sampled_from([".", "ab", "b.a", "\u00e9"]), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 5),
)
@settings(max_examples=200, deadline=None)
def test_how_tokens_come_in_steps_does_not_matter(
    tokens: list[int], sizes: list[int], stops: list[str], include: bool, min_tokens: int
) -> None:
    """STP-01, STP-03, STP-04, DET-01."""
    params: dict[str, Any] = {"stop": stops, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    chunks, start = [], 0
    while start < len(tokens):
        chunks.append(tokens[start : start + sizes[len(chunks) % len(sizes)]])
        start += len(chunks[-1])
    outputs = [*map(output_of, chunks[:-1]), output_of(chunks[-1], finish="length")]
    _, in_steps = run(_TOKENIZER, outputs, **params)
    _, at_once = run(_TOKENIZER, [output_of(tokens, finish="length")], **params)
    assert in_steps == at_once
    assert len(at_once.outputs[0].token_ids) >= min(min_tokens, len(tokens))
