"""Outputs that must have a form: they have it, end by themselves, and nobody else notices."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageport import LLM, SamplingParams, StructuredOutput
from pageport.engine.outputs import RequestOutput
from pageport.errors import InvalidParameter
from pageport.testing.tiny_model import EOS, write_tiny_llama

from .engine_drive import EngineDrive

OpenLLM = Callable[..., LLM]

RECORD = json.dumps(
    {
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"enum": [1, "two", None]},
            "c": {"maxLength": 5, "type": "string"},
        },
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
)
FORMS: dict[str, StructuredOutput] = {
    "schema": StructuredOutput(json_schema=RECORD),
    "compact": StructuredOutput(json_schema=RECORD, allows_whitespace=False),
    "regex": StructuredOutput(regex="[0-9]{4}"),
    "choice": StructuredOutput(choice=("yes", "no", 'say "no"\n', "ja: é")),
    "grammar": StructuredOutput(grammar='start: "<" word ("," word){1,3} ">"\nword: /[a-c]{1,3}/'),
}
each_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_llama(tmp_path_factory.mktemp("structured") / "tiny")
    small = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_kv_blocks": 256, "max_model_len": 256}
    with LLM(str(folder), dtype="float32", **small) as opened:
        yield opened


def ask(llm: LLM, structured: StructuredOutput | None, prompt: str = "hello", **fields: Any) -> RequestOutput:
    fields = {"seed": 1, "max_tokens": 200, **fields}
    return llm.generate([prompt], SamplingParams(structured=structured, **fields), use_tqdm=False)[0]


def has_form(text: str, form: str) -> bool:
    match form:
        case "schema" | "compact":
            jsonschema.validate(json.loads(text), json.loads(RECORD))
            outside_strings = re.sub(r'"(\\.|[^"\\])*"', '""', text)
            return not re.search(r"\s\s|[^\S ]" if form == "schema" else r"\s", outside_strings)
        case "regex":
            return re.fullmatch("[0-9]{4}", text) is not None
        case "choice":
            return text in (FORMS["choice"].choice or ())
        case _:
            return re.fullmatch("<[a-c]{1,3}(,[a-c]{1,3}){1,3}>", text) is not None


@each_form
@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_every_choice_has_the_form_and_ends_by_itself(llm: LLM, form: str, temperature: float) -> None:
    """STR-07, STR-03."""
    answer = ask(llm, FORMS[form], n=1 if temperature == 0 else 4, temperature=temperature)
    for choice in answer.outputs:
        assert choice.finish_reason == "stop" and has_form(choice.text, form)


@each_form
@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 150}, {"allowed_token_ids": [*range(256)]}])
def test_a_complete_output_ends_whatever_else_is_asked(llm: LLM, form: str, fields: dict[str, Any]) -> None:
    """STR-07."""
    (choice,) = ask(llm, FORMS[form], **fields).outputs
    assert choice.finish_reason == "stop" and has_form(choice.text, form)


def test_an_output_that_could_go_on_does_while_it_must(llm: LLM) -> None:
    digits = StructuredOutput(regex="[0-9]{2,30}")
    assert len(ask(llm, digits, min_tokens=20).outputs[0].text) >= 20
    assert len(ask(llm, digits, ignore_eos=True).outputs[0].text) == 30
    assert (
        ask(llm, StructuredOutput(regex="[0-9]+"), ignore_eos=True, max_tokens=50).outputs[0].finish_reason == "length"
    )


def test_whitespace_cannot_eat_the_output(llm: LLM) -> None:
    """STR-03."""
    numbers = {name: {"type": "integer", "minimum": 0, "maximum": 99} for name in "abc"}
    schema = {"type": "object", "properties": numbers, "required": list("abc"), "additionalProperties": False}
    bias = {ord(blank): 50.0 for blank in " \n\t\r"}
    (choice,) = ask(llm, StructuredOutput(json_schema=json.dumps(schema)), logit_bias=bias).outputs
    assert choice.finish_reason == "stop" and set(json.loads(choice.text)) == set("abc")
    assert "  " not in choice.text and len(choice.text) < 50


def test_end_tokens_are_those_of_the_tokenizer_too(tmp_path: Path, open_llm: OpenLLM) -> None:
    """STR-07: a config that names none."""
    folder = write_tiny_llama(tmp_path / "no-eos")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    (choice,) = ask(open_llm(folder), FORMS["choice"]).outputs
    assert choice.finish_reason == "stop" and has_form(choice.text, "choice")
    assert choice.token_ids[-1] == EOS


@pytest.mark.parametrize("vocab_size", [259, 260, 320, 321])
def test_a_padded_output_matrix_gives_no_padding(tmp_path: Path, open_llm: OpenLLM, vocab_size: int) -> None:
    """STR-09."""
    llm = open_llm(write_tiny_llama(tmp_path / "padded", vocab_size=vocab_size))
    constrained = SamplingParams(structured=StructuredOutput(regex="(?s:.*)"), max_tokens=100, temperature=9, seed=3)
    answers = llm.generate(["a"] * 2, [constrained, replace(constrained, structured=None)], use_tqdm=False)
    assert max(answers[0].outputs[0].token_ids) < 259
    assert len(answers[1].outputs[0].token_ids) > 0


@each_form
def test_the_stream_says_what_the_whole_answer_does(llm: LLM, form: str) -> None:
    params = SamplingParams(structured=FORMS[form], max_tokens=200, seed=5)
    streamed = "".join(delta.text for delta in llm.stream("hello", params))
    assert streamed == ask(llm, FORMS[form], seed=5).outputs[0].text


def test_a_batch_of_all_kinds_equals_each_alone(llm: LLM) -> None:
    params = [SamplingParams(structured=form, max_tokens=60, seed=i) for i, form in enumerate([None, *FORMS.values()])]
    prompts = ["hello", "world", "a", "b", "c", "d"]
    together = llm.generate(prompts, params, use_tqdm=False)
    alone = [llm.generate(p, one, use_tqdm=False)[0] for p, one in zip(prompts, params, strict=True)]
    assert [a.outputs[0].token_ids for a in together] == [a.outputs[0].token_ids for a in alone]


@pytest.mark.parametrize("form", [FORMS["schema"], StructuredOutput(regex="([a-z]{3}-){9,}")], ids=["schema", "regex"])
def test_preemption_in_the_middle_changes_nothing(tmp_path: Path, open_llm: OpenLLM, form: StructuredOutput) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    params = SamplingParams(structured=form, max_tokens=60, n=6, seed=11, min_tokens=30)
    roomy, tight = (open_llm(folder, num_kv_blocks=n, max_model_len=80, enable_prefix_caching=False) for n in (64, 9))
    expected, got = (one.generate("hello", params, use_tqdm=False)[0] for one in (roomy, tight))
    assert [c.token_ids for c in got.outputs] == [c.token_ids for c in expected.outputs]
    assert tight.stats().preemptions_total > 0


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/anyOf/1", "anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "boolean"}}},
        {
            "$ref": "#/$defs/one",
            "$defs": {"one": {"$ref": "#/$defs/two"}, "two": {"$ref": "#/$defs/a~0"}, "a~": {"enum": [1]}},
        },
        {
            "type": "object",
            "properties": {"t": {"anyOf": [{"type": "null"}, {"enum": [7]}]}, "u": {"$ref": "#/properties/t/anyOf/1"}},
            "required": ["t", "u"],
            "additionalProperties": False,
        },
    ],
)
def test_a_pointer_is_followed_or_named_in_the_refusal(llm: LLM, schema: dict[str, Any]) -> None:
    """STR-04: never is the output free."""
    try:
        (choice,) = ask(llm, StructuredOutput(json_schema=json.dumps(schema))).outputs
    except InvalidParameter as error:
        assert "$ref" in str(error) or "#/" in str(error)
    else:
        jsonschema.validate(json.loads(choice.text), schema)


def test_logprobs_penalties_and_bad_words_go_along(llm: LLM) -> None:
    fields = {"logprobs": 2, "presence_penalty": 1.5, "repetition_penalty": 1.2, "top_k": 20, "bad_words": ["yes"]}
    (choice,) = ask(llm, StructuredOutput(choice=("yes", "yet")), **fields).outputs
    assert choice.text == "yet"
    assert choice.logprobs is not None and len(choice.logprobs) == len(choice.token_ids)


def test_a_wrong_grammar_is_refused_before_anything_runs(llm: LLM) -> None:
    """STR-01."""
    before = llm.stats().generation_tokens_total
    params = [SamplingParams(max_tokens=3), SamplingParams(structured=StructuredOutput(json_schema='{"$ref": "#"}'))]
    with pytest.raises(InvalidParameter, match="needs itself"):
        llm.generate(["a", "b"], params, use_tqdm=False)
    with pytest.raises(InvalidParameter, match="needs itself"):
        next(llm.stream("a", params[1]))
    assert llm.stats().generation_tokens_total == before


def test_others_step_on_while_a_grammar_is_compiled(llm: LLM) -> None:
    """STR-05: the explosive one is refused, the good one runs, and the free one never waited."""
    drive = EngineDrive(llm)
    bomb = StructuredOutput(json_schema='{"type": "integer", "multipleOf": 999983}')
    free = drive.add("a", SamplingParams(max_tokens=20, ignore_eos=True))
    waiting = drive.add("b", SamplingParams(structured=bomb))
    while not drive.is_finished(free):
        drive.step()
    assert not llm._engine.has_work  # the compiler is still at it
    good = drive.add("c", SamplingParams(structured=StructuredOutput(choice=("other", "one"))))
    drive.finish(free, good)
    while not (refused := llm._engine.step().refused):
        pass
    assert list(refused) == [waiting] and "too much" in str(refused[waiting])
    drive.forget(waiting)
    drive.require_idle()


def test_closing_does_not_wait_for_a_grammar_that_is_being_tried(tmp_path: Path, open_llm: OpenLLM) -> None:
    llm = open_llm(write_tiny_llama(tmp_path / "tiny"))
    bomb = StructuredOutput(json_schema='{"type": "integer", "multipleOf": 999983}')
    EngineDrive(llm).add("b", SamplingParams(structured=bomb))
    grammars = llm._engine._grammars
    assert grammars is not None
    while not (processes := [c._process for c in grammars._checkers if c._process is not None]):
        time.sleep(0.001)
    begin = time.monotonic()
    llm.close()
    assert time.monotonic() - begin < 1.5  # of 2 s that it may take
    assert [process.poll() is None for process in processes] == [False]


@each_form
def test_steps_in_flight_change_nothing(llm: LLM, tmp_path: Path, open_llm: OpenLLM, form: str) -> None:
    deep = open_llm(write_tiny_llama(tmp_path / "tiny"), pipeline_depth=1)
    expected, got = (ask(one, FORMS[form], n=2).outputs for one in (llm, deep))
    assert [choice.token_ids for choice in got] == [choice.token_ids for choice in expected]


def test_a_deadline_counts_from_the_arrival(llm: LLM) -> None:
    drive = EngineDrive(llm)
    params = SamplingParams(structured=StructuredOutput(regex="[0-9]{77}"))
    drive.start(drive.prepare("a", params, request_id="late", timeout_s=0.001))
    (answer,) = drive.finish("late")
    assert answer.outputs[0].finish_reason == "timeout"
    drive.require_idle()


def test_an_aborted_request_does_not_run_once_its_grammar_is_there(llm: LLM) -> None:
    drive = EngineDrive(llm)
    request_id = drive.add("a", SamplingParams(structured=StructuredOutput(choice=("never", "seen"))))
    drive.abort(request_id)
    for _ in range(20):
        step = llm._engine.step()
        assert (step.outputs, dict(step.refused)) == ([], {})
    drive.forget(request_id)
    drive.require_idle()


def test_the_library_is_imported_by_the_first_request_that_needs_it(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    code = (
        "import sys, pageport, pageport.server.app\n"
        f"llm = pageport.LLM({str(folder)!r}, num_kv_blocks=16, max_model_len=64)\n"
        "llm.generate('a', use_tqdm=False); assert 'llguidance' not in sys.modules\n"
        "from pageport.sampling.structured import StructuredOutput\n"
        "form = StructuredOutput(regex='a')\n"
        "llm.generate('a', pageport.SamplingParams(structured=form), use_tqdm=False)\n"
        "assert 'llguidance' in sys.modules; llm.close()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


names = st.sampled_from(["a", "b", "key", 'q"uote', "é"])
scalars: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.builds(
        lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
        st.integers(0, 2),
        st.integers(0, 4),
    ),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.sampled_from([1, 2.5, None, True, "x", [1], {"a": 1}]), min_size=1)
    ),
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"const": "\n"}, {"type": "string", "pattern": "^[a-f]{3}$"}]
    ),
)
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda items, low, size: {"type": "array", "items": items, "minItems": low, "maxItems": low + size},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "additionalProperties": False,
                "required": [name for name in properties if required],
            },
            st.dictionaries(names, inner, max_size=3),
            st.booleans(),
        ),
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("examples", [25, pytest.param(400, marks=pytest.mark.full)])
def test_what_a_random_schema_lets_through_is_valid(llm: LLM, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(schema=schemas, seed=st.integers(0, 2**32))
    def check(schema: dict[str, Any], seed: int) -> None:
        form = StructuredOutput(json_schema=json.dumps(schema))
        (choice,) = ask(llm, form, seed=seed, temperature=2.0).outputs
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.text), schema)
            finished.append(choice.text)

    finished: list[str] = []
    check()
    assert len(finished) > examples / 2
