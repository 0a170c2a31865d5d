"""``/v1/completions``: what comes back for what is sent."""

from openai.types import Completion

from .conftest import Post, ScriptedEngine, app_for, ask, events


def test_a_response_is_valid_for_the_strict_client(complete: Post) -> None:
    """INT-06."""
    response = complete(max_tokens=3)
    answer = Completion.model_validate_json(response.text, strict=True)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("hel", "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 3, 5)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_sixteen_tokens_are_generated_when_nothing_is_said(engine: ScriptedEngine, complete: Post) -> None:
    """VAL-11."""
    complete()
    assert engine.requests[0].max_tokens == 16


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(engine: ScriptedEngine, complete: Post) -> None:
    """BAT-01."""
    answer = complete(prompt=["a", "b", "c"], n=2, echo=True).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, "ahello"), (1, "ahello"), (2, "bhello"), (3, "bhello"), (4, "chello"), (5, "chello"),
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 6 * 6
    assert len({request.request_id for request in engine.requests}) == 3


def test_streamed_choices_of_several_prompts_each_end_once(complete: Post) -> None:
    """BAT-01, streamed."""
    chunks = events(complete(prompt=[[97], [98], [99]], n=2, echo=True, stream=True))[:-1]
    texts, ends = [""] * 6, [0] * 6
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    first = chr(sorted(map(ord, texts[0]))[0])
    assert texts[0] == texts[1] and texts[0].endswith("hello") and first
    assert ends == [1] * 6


def test_one_bad_prompt_refuses_the_request_before_any_is_started(engine: ScriptedEngine, complete: Post) -> None:
    """BAT-01."""
    response = complete(prompt=["a", "x" * 200, "c"])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.requests == []


def test_more_choices_than_allowed_are_refused_before_fan_out(engine: ScriptedEngine) -> None:
    """SEC-08."""
    app = app_for(engine, max_choices=4)
    response = ask(app, "POST", "/v1/completions", json={"prompt": ["a"] * 5})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert "5 choices" in response.json()["error"]["message"]
    assert engine.requests == []


def test_echo_with_no_tokens_returns_the_prompt_alone(complete: Post) -> None:
    answer = complete(prompt="abc", echo=True, max_tokens=0, logprobs=1).json()
    assert answer["choices"][0]["text"] == "abc"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert answer["usage"]["completion_tokens"] == 0


def test_no_tokens_without_echo_are_refused(complete: Post) -> None:
    assert complete(max_tokens=0).json()["error"]["param"] == "max_tokens"


def test_token_ids_are_a_prompt(engine: ScriptedEngine, complete: Post) -> None:
    complete(prompt=[104, 105])
    assert engine.requests[0].prompt_token_ids == [104, 105]


def test_sampling_fields_reach_the_engine(engine: ScriptedEngine, complete: Post) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "presence_penalty": 0.1,
        "frequency_penalty": 0.2, "repetition_penalty": 1.1, "stop": ["x"], "stop_token_ids": [3],
        "include_stop_str_in_output": True, "min_tokens": 2, "bad_words": ["no"], "allowed_token_ids": [1, 2],
        "skip_special_tokens": False, "spaces_between_special_tokens": False, "truncate_prompt_tokens": 1,
        "ignore_eos": True,
    }  # fmt: skip
    assert complete(**fields, logit_bias={"5": -3}, priority=2, cache_salt="s").status_code == 200
    (request,) = engine.requests
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert request.sampling.logit_bias == {5: -3.0}
    assert (request.priority, request.cache_keys, len(request.prompt_token_ids)) == (2, {"salt": "s"}, 1)


def test_explicit_nulls_mean_the_defaults(engine: ScriptedEngine, complete: Post) -> None:
    """VAL-06."""
    names = "temperature top_p max_tokens n stop seed logprobs logit_bias stream stream_options user suffix model echo"
    assert complete(**dict.fromkeys(names.split())).status_code == 200
    complete()
    assert engine.requests[0].sampling == engine.requests[1].sampling


def test_beam_search_reaches_the_engine(engine: ScriptedEngine, complete: Post) -> None:
    assert complete(use_beam_search=True, n=2, best_of=4, length_penalty=0.5, max_tokens=5).status_code == 200
    beam = engine.requests[0].beam
    assert beam is not None
    assert (beam.beam_width, beam.num_return, beam.length_penalty, beam.max_tokens) == (4, 2, 0.5, 5)


def test_beam_search_refuses_what_it_would_ignore(complete: Post) -> None:
    assert complete(use_beam_search=True, stop=["x"]).json()["error"]["param"] == "stop"
    assert complete(use_beam_search=True, logprobs=1).json()["error"]["param"] == "logprobs"
    assert complete(length_penalty=0.5).json()["error"]["param"] == "length_penalty"


def test_ids_are_unique_and_created_is_in_seconds(complete: Post) -> None:
    """REQ-02."""
    answers = [complete(max_tokens=1).json() for _ in range(20)]
    assert len({answer["id"] for answer in answers}) == 20
    assert all(type(answer["created"]) is int and answer["created"] < 10**10 for answer in answers)


def test_prompt_logprobs_come_with_their_token_ids(complete: Post) -> None:
    (choice,) = complete(prompt="ab", prompt_logprobs=1).json()["choices"]
    none, second = choice["prompt_logprobs"]
    assert none is None
    assert second["98"] == {"logprob": -0.5, "rank": 1, "decoded_token": "x"}
