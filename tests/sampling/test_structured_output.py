"""What a request may ask of its output's form, and how grammars that cannot be followed are found out."""

import json
import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from pageport.errors import InvalidParameter
from pageport.sampling.grammar_check import find_problem
from pageport.sampling.grammar_checker import GrammarChecker
from pageport.sampling.params import SamplingParams
from pageport.sampling.schema_recursion import SchemaRecursion
from pageport.sampling.structured import StructuredOutput
from pageport.sampling.validate import MAX_STRUCTURED_CHARACTERS, validate

LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
MUTUAL_LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
NEEDS_ITSELF = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
LIST = {"type": "object", "properties": {"next": {"$ref": "#"}}}
ESCAPED = {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": NEEDS_ITSELF}}
TREE = {
    "type": "object",
    "properties": {"left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "right": {"$ref": "#/properties/left"}},
    "required": ["left", "right"],
}


@pytest.mark.parametrize(
    ("schema", "is_endless"),
    [
        (LOOP, True),
        (MUTUAL_LOOP, True),
        (NEEDS_ITSELF, True),
        ({"$ref": "#/properties/next", **NEEDS_ITSELF}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, True),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, False),
        ({"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}, True),
        ({"allOf": [{"type": "object"}, {"$ref": "#"}]}, True),
        ({**NEEDS_ITSELF, "type": ["object"]}, True),
        ({**NEEDS_ITSELF, "type": ["object", "null"]}, False),
        (LIST, False),
        (TREE, False),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        ({"type": "array", "prefixItems": [{"$ref": "#"}]}, False),
        ({**NEEDS_ITSELF, "const": {}}, False),
        ({"$ref": "#/anyOf/1", "anyOf": [{"$ref": "#"}, {"type": "null"}]}, False),
        ({"$ref": "https://example.org/other"}, False),
        (True, False),
        ({}, False),
    ],
)  # fmt: skip
def test_a_schema_that_no_finite_value_satisfies_is_recognised(schema: Any, is_endless: bool) -> None:
    """STR-01."""
    assert SchemaRecursion(schema).is_endless is is_endless


def test_pointers_are_unescaped() -> None:
    """STR-04."""
    loop = {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"$ref": "#/$defs/a~1b%25"}}}
    assert SchemaRecursion(loop).is_endless
    assert not SchemaRecursion({**loop, "$defs": {"a/b%": {"type": "null"}}}).is_endless


def test_long_chains_of_references_are_followed() -> None:
    names = [f"n{i}" for i in range(5000)]
    chain: dict[str, Any] = {a: {"$ref": f"#/$defs/{b}"} for a, b in pairwise(names)}
    ends, loops = {**chain, names[-1]: {"type": "null"}}, {**chain, names[-1]: {"$ref": "#/$defs/n0"}}
    assert not SchemaRecursion({"$ref": "#/$defs/n0", "$defs": ends}).is_endless
    assert SchemaRecursion({"$ref": "#/$defs/n0", "$defs": loops}).is_endless


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"regex": "a", "json_object": True},
        {"json_schema": ""},
        {"json_schema": "{"},
        {"json_schema": "[]"},
        {"json_schema": "[" * 100_000},
        {"json_schema": 5},
        {"regex": " "},
        {"regex": "a" * (MAX_STRUCTURED_CHARACTERS + 1)},
        {"choice": ()},
        {"choice": ("a", "")},
        {"choice": ["a"]},
        {"choice": ("a" * MAX_STRUCTURED_CHARACTERS, "b")},
        {"grammar": ""},
        {"regex": "a", "allows_whitespace": None},
    ],
    ids=lambda form: repr(form)[:40],
)
def test_an_impossible_form_is_refused_by_the_name_of_its_field(form: dict[str, Any]) -> None:
    """STR-05, SEC-11."""
    params = SamplingParams(structured=StructuredOutput(**form, parameter="guided_thing"))
    with pytest.raises(InvalidParameter, match="guided_thing") as refusal:
        validate(params)
    assert refusal.value.parameter == "guided_thing"


def test_equal_forms_are_equal_whatever_field_they_come_from() -> None:
    one, other = (StructuredOutput(regex="a", parameter=name) for name in ("guided_regex", "structured_outputs"))
    assert one == other and hash(one) == hash(other)
    assert one != StructuredOutput(regex="a", allows_whitespace=False)


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.close()


def schema(value: Any) -> StructuredOutput:
    return StructuredOutput(json_schema=json.dumps(value))


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(json_object=True),
        schema(LIST),
        schema(TREE),
        schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(500)}}),
        schema({"enum": [f"value {i}" for i in range(5000)]}),
        StructuredOutput(regex="[0-9]{4}"),
        StructuredOutput(regex="^(x+x+)+y$"),
        StructuredOutput(choice=tuple(f"choice {i}" for i in range(2000))),
        StructuredOutput(choice=('"', "\\", "\n", "é", "日本", "/", "(")),
        StructuredOutput(grammar='start: "a" start | "b"'),
        StructuredOutput(grammar='start: <[49000]> "a" <tool_call> /(?P<name>b)/'),
    ],
    ids=lambda structured: structured.given[0],
)
def test_a_right_grammar_has_no_problem(checker: GrammarChecker, structured: StructuredOutput) -> None:
    assert checker.find_problem(structured) == ""


@pytest.mark.parametrize(
    ("structured", "problem"),
    [
        (schema(LOOP), "needs itself"),
        (schema(MUTUAL_LOOP), "needs itself"),
        (schema(NEEDS_ITSELF), "needs itself"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"type": "text"}), "text"),
        (schema({"$ref": "#/nowhere"}), "nowhere"),
        (schema(False), "."),
        (StructuredOutput(json_schema='{"items": ' * 300 + "{}" + "}" * 300), "recursion limit"),
        (schema({"allOf": [{"anyOf": [{"required": [f"{i}{k}"]} for i in range(40)]} for k in range(4)]}), "."),
        (StructuredOutput(regex="(a"), "unclosed"),
        (StructuredOutput(regex="(?=a)b"), "look-around"),
        (StructuredOutput(regex="((((a{1,99}){1,99}){1,99}){1,99}){1,99}"), "costs too much"),
        (StructuredOutput(grammar="start: nobody"), "nobody"),
        (StructuredOutput(grammar="start: start start"), "nothing satisfies it"),
    ],
)
def test_a_wrong_grammar_is_explained(checker: GrammarChecker, structured: StructuredOutput, problem: str) -> None:
    """STR-01, STR-05."""
    assert re.search(problem, checker.find_problem(structured))


BOMBS = {
    "multiple": schema({"type": "integer", "multipleOf": 999_983}),
    "nested repeats": StructuredOutput(regex="(a{1,900}){900}"),
    "intersection": schema({"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(40)]}),
    "many options": schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}}),
}


@pytest.mark.parametrize("name", ["multiple", *(pytest.param(n, marks=pytest.mark.full) for n in list(BOMBS)[1:])])
def test_an_explosive_grammar_costs_its_time_and_no_more(checker: GrammarChecker, name: str) -> None:
    """STR-05: the process that tried it is gone, and another one answers the next."""
    begin = time.monotonic()
    assert "too much" in checker.find_problem(BOMBS[name])
    assert time.monotonic() - begin < 11  # 2 s of the process's own time, 10 s of any
    assert checker.find_problem(StructuredOutput(regex="a")) == ""


def test_find_problem_leaves_nothing_behind_in_the_tokenizer() -> None:
    from llguidance import LLTokenizer, TokenizerWrapper

    from pageport.sampling.grammar_check import SingleBytes

    tokenizer = LLTokenizer(TokenizerWrapper(SingleBytes()))
    answers = [find_problem(StructuredOutput(regex=text), tokenizer) for text in ("a", "(", "a", "(")]
    assert [bool(answer) for answer in answers] == [False, True, False, True]


def test_the_process_that_tries_grammars_ends_with_its_parent() -> None:
    checker = GrammarChecker()
    checker.find_problem(StructuredOutput(regex="a"))
    process = checker._process
    assert process is not None and process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    checker.close()


def test_a_mask_that_takes_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pageport.sampling import grammar

    monkeypatch.setattr(grammar, "MASK_TIMEOUT_S", 0.05)
    calls, gate = grammar._BoundedCalls(), threading.Event()
    with pytest.raises(grammar.GrammarError, match="takes more than"):
        calls.run(lambda: b"late" if gate.wait(30) else b"")
    monkeypatch.setattr(grammar, "MASK_TIMEOUT_S", 30)
    assert calls.run(lambda: b"next") == b"next"
    gate.set()
    assert calls.run(lambda: b"after") == b"after"


def test_a_panic_of_the_library_is_an_error_of_one_request() -> None:
    from pageport.sampling import grammar

    class Panic(BaseException):
        """As native code raises it: no ``Exception``."""

    def panic() -> bytes:
        raise Panic("index out of bounds")

    calls = grammar._BoundedCalls()
    with pytest.raises(grammar.GrammarError, match="index out of bounds"):
        calls.run(panic)
    assert calls.run(lambda: b"next") == b"next"
