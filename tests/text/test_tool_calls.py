"""``pageport.text.tool_calls``: a model's output as reasoning, content and calls, however it is cut into pieces."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.text.tool_calls.call_reader import CallReader, join_events
from pageport.text.tool_calls.events import CallArguments, CallBegins, CallEnds, Content, Event, Reasoning
from pageport.text.tool_calls.output_parser import OutputParser
from pageport.text.tool_calls.reasoning_format import THINK, reasoning_format_of
from pageport.text.tool_calls.reasoning_reader import ReasoningReader
from pageport.text.tool_calls.tool_format import HERMES, LLAMA3_JSON, MISTRAL, ToolFormat, tool_format_of

FORMATS = (HERMES, LLAMA3_JSON, MISTRAL)
each_format = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda known: known.name)


def read(
    pieces: Iterable[str], tool_format: ToolFormat, *, is_open: bool = False, max_calls: int | None = None
) -> list[Event]:
    parser = OutputParser(
        ReasoningReader(THINK, is_open=is_open), CallReader(tool_format, ["f", "g"], max_calls=max_calls)
    )
    return join_events([event for piece in pieces for event in parser.push(piece)] + parser.finish())


def call(index: int, name: str, arguments: str) -> list[Event]:
    return [CallBegins(index, name), CallArguments(index, arguments), CallEnds(index)]


def written(tool_format: ToolFormat, *calls: tuple[str, str], template: str = "") -> str:
    """Write calls as the format's grammar would."""
    syntax = tool_format.syntax_for(template)
    bodies = [
        syntax.before_name
        + (json.dumps(name) if syntax.quotes_name else name)
        + syntax.before_arguments
        + arguments
        + syntax.after_arguments
        for name, arguments in calls
    ]
    return syntax.head + syntax.between.join(bodies) + syntax.tail


@each_format
@pytest.mark.parametrize("template", ["", "[ARGS]"])
def test_parallel_calls_are_counted(tool_format: ToolFormat, template: str) -> None:
    """TOL-01."""
    text = written(tool_format, ("f", '{"a": "}\\" ]"}'), ("g", "{}"), ("f", '{"a": [{}]}'), template=template)
    expected = [*call(0, "f", '{"a": "}\\" ]"}'), *call(1, "g", "{}"), *call(2, "f", '{"a": [{}]}')]
    assert read([text], tool_format) == expected
    assert read(text, tool_format) == expected


@each_format
def test_only_so_many_calls_are_passed_on_as_are_allowed(tool_format: ToolFormat) -> None:
    text = written(tool_format, ("f", '{"a": 1}'), ("g", "{}"))
    assert read(text, tool_format, max_calls=1) == call(0, "f", '{"a": 1}')


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, 'Sure.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'),
        (HERMES, 'Sure. <tool_call>{"arguments":{"a": 1}, "name":"f"}'),
        (LLAMA3_JSON, 'Sure.<|python_tag|>{"type":"function","name": "f", "parameters": {"a": 1}}'),
        (MISTRAL, 'Sure.[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'),
        (MISTRAL, 'Sure.[TOOL_CALLS]{"name": "f", "arguments": {"a": 1}}'),
        (MISTRAL, 'Sure.[TOOL_CALLS]f{"a": 1}'),
        (MISTRAL, 'Sure.[TOOL_CALLS]f[CALL_ID]x1[ARGS]{"a": 1}'),
    ],
)
def test_no_part_of_a_marker_reaches_the_content(tool_format: ToolFormat, text: str) -> None:
    """TOL-03."""
    assert read(text, tool_format) == [Content("Sure."), *call(0, "f", '{"a": 1}')]


@pytest.mark.parametrize("end", ["", "\n", "<", "\n</tool_call", "</tool_call>\n"])
def test_an_output_may_end_anywhere_in_the_marker_that_ends_a_call(end: str) -> None:
    """TOL-03."""
    assert read('<tool_call>{"name":"f","arguments":{"a": 1}}' + end, HERMES) == call(0, "f", '{"a": 1}')


@each_format
@pytest.mark.parametrize(
    "text",
    [
        "<tool_box> <<tool_call", "a [TOOL_CALL] b [[TOOL", "<|python_tag <|", "</tool_call>", "\n \n", "{}", "[]",
        '{"answer": {"name": "f"}}', '{"name": "h", "parameters": {}}', "<thin", "x <think>y</think>", "{'name': 'f'}",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_marker_is_content(tool_format: ToolFormat, text: str) -> None:
    """TOL-03."""
    assert read([text], tool_format) == [Content(text)]
    assert read(text, tool_format) == [Content(text)]


@each_format
@pytest.mark.parametrize("arguments", ["{}", "null", '""', '"{}"'])
def test_a_call_without_arguments_has_an_empty_object(tool_format: ToolFormat, arguments: str) -> None:
    """TOL-04."""
    marker, key = tool_format.begin_markers[0], tool_format.argument_keys[0]
    assert read(f'{marker}{{"name": "f", "{key}": {arguments}}}', tool_format) == call(0, "f", "{}")
    assert read(f'{marker}{{"name": "f"}}', tool_format) == call(0, "f", "{}")


@each_format
@pytest.mark.parametrize(
    "body",
    [
        "{'name': 'f'}", '{"name": 1}', '{"name": "", "arguments": {}}', '{"arguments": {}}', '{"name": "f" "x"}',
        '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": "no"}', '{"name": "f", "arguments": tru',
        '{"name": "\\ud800", "arguments": {}}', '{"name": "f\\x"', "nothing", "", '{"a": ' + "[" * 5000,
    ],
)  # fmt: skip
def test_what_turns_out_to_be_no_call_is_content_unchanged(tool_format: ToolFormat, body: str) -> None:
    """TOL-05."""
    text = f"{tool_format.begin_markers[0]} {body}{tool_format.end_marker} bye"
    assert read(text, tool_format) == [Content(text)]


@pytest.mark.parametrize(
    ("body", "arguments", "rest"),
    [
        ('{"name":"f","arguments":{"a":1}', '{"a":1}', ""),
        ('{"name":"f","arguments":{"a":1}} more', '{"a":1}', " more"),
        ('{"name":"f","arguments":{"a":"x\ny\t\x01"}}', '{"a":"x\\ny\\t\\u0001"}', ""),
        ('{"name":"f","arguments":"{\\"a\\": 1}"}', '{"a": 1}', ""),
        ('{"name":"unknown","arguments":{}}', "{}", ""),
        ('{"name":"f","arguments":{\'a\':1}}', "{'a':1}}", ""),
        ('{"name":"f","arguments":{"a":01}}', '{"a":01}}', ""),
        ('{"name":"f","arguments":{"a":"\\u00g0"}}', '{"a":"\\u00g0"}}', ""),
        ('{"name":"f","arguments":{"a":"\\x"}}', '{"a":"\\x"}}', ""),
        ('{"name":"f","arguments":{"a":[1}}}', '{"a":[1}}}', ""),
    ],
)
def test_faulty_calls_lose_nothing(body: str, arguments: str, rest: str) -> None:
    """TOL-05: arguments that are no JSON are passed on up to the end of the call."""
    events = read(f"<tool_call>{body}</tool_call>!", HERMES)
    assert events[1:] == [CallArguments(0, arguments), CallEnds(0), Content(rest + "!")]


def test_a_broken_call_ends_where_the_next_begins() -> None:
    assert read("[TOOL_CALLS]f{x}[TOOL_CALLS]g{}", MISTRAL) == [*call(0, "f", "{x}"), *call(1, "g", "{}")]


@each_format
def test_arguments_come_as_they_are_written(tool_format: ToolFormat) -> None:
    text = written(tool_format, ("f", '{"a": "long text"}'))
    reader = CallReader(tool_format, ["f"])
    reader.push(text[: text.index("lo")])
    assert reader.push("lo") == [CallArguments(0, "lo")]


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nwhy\n\nnot\n</think>\n\nso", False, [Reasoning("why\n\nnot"), Content("so")]),
        ("\n<think>why</think>so\n", False, [Reasoning("why"), Content("so\n")]),
        ("\nwhy\n</think>\nso", True, [Reasoning("why"), Content("so")]),
        ("</think>so", True, [Content("so")]),
        ("<think></think>so", False, [Content("so")]),
        ("why </thin", True, [Reasoning("why </thin")]),
        ("<think>a <tool_call> b</think>c", False, [Reasoning("a <tool_call> b"), Content("c")]),
        ("so </think>", False, [Content("so </think>")]),
    ],
)
def test_reasoning_is_told_from_the_answer(text: str, is_open: bool, expected: list[Event]) -> None:
    """STP-09: nor does a part of its marker become content."""
    assert read([text], HERMES, is_open=is_open) == expected
    assert read(text, HERMES, is_open=is_open) == expected


@pytest.mark.parametrize(
    ("prompt", "continued", "is_open"),
    [
        ("<assistant><think>\n", "", True),
        ("say <think><assistant>", "", False),
        ("<assistant><think>a", "<think>a", True),
        ("<assistant><think>a</think>b", "<think>a</think>b", False),
    ],
)
def test_a_prompt_may_open_the_reasoning(prompt: str, continued: str, is_open: bool) -> None:
    assert THINK.is_open_after(prompt, continued) is is_open


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("… <tool_call>\n{'name': …", HERMES),
        ("… <tool_call><function=…", None),
        ("… <|python_tag|> …", LLAMA3_JSON),
        ('Respond in the format {"name": function name, "parameters": …', LLAMA3_JSON),
        ("… [TOOL_CALLS] …", MISTRAL),
        ("{{ messages }}", None),
    ],
)
def test_the_format_shows_in_the_chat_template(template: str, expected: ToolFormat | None) -> None:
    assert tool_format_of(template) is expected


def test_reasoning_shows_in_the_chat_template() -> None:
    assert reasoning_format_of("… .split('</think>') …") is THINK
    assert reasoning_format_of("{{ messages }}") is None


FRAGMENTS = st.sampled_from(
    [
        *(marker for known in FORMATS for marker in (*known.markers, *known.header_markers)), "<think>", "</think>",
        '{"name": "f", "arguments": {"a": [1, -2.5e3, "\\u00e9\\n"]}}', '{"name":"g","parameters":{}}', '{"name": "f"',
        '"arguments": {"a": "', "f", "{}", "{", "}", "[", "]", ",", ";", ":", '"', "\\", "\n", " ", "é🔥", "<tool",
        '{"name": "f", "parameters": "{}"}', "null", "tru", "1.", "\x00", "'",
    ]
)  # fmt: skip
OUTPUTS = st.lists(FRAGMENTS | st.text(max_size=4), max_size=12).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)


@each_format
@settings(max_examples=150, deadline=None)
@given(text=OUTPUTS, cuts=CUTS, is_open=st.booleans(), end=st.integers(0, 400))
def test_how_an_output_is_cut_makes_no_difference(
    tool_format: ToolFormat, text: str, cuts: list[int], is_open: bool, end: int
) -> None:
    text = text[:end] if end < len(text) else text
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    whole = read([text], tool_format, is_open=is_open)
    assert read(pieces, tool_format, is_open=is_open) == whole
    assert read(text, tool_format, is_open=is_open) == whole


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@each_format
@settings(max_examples=50, deadline=None)
@given(objects=st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=3), is_ascii=st.booleans())
def test_every_object_comes_back_as_it_was_written(
    tool_format: ToolFormat, objects: list[dict[str, object]], is_ascii: bool
) -> None:
    texts = [json.dumps(value, ensure_ascii=is_ascii) for value in objects]
    events = read(written(tool_format, *(("f", text) for text in texts)), tool_format)
    assert events == [event for index, text in enumerate(texts) for event in call(index, "f", text)]


@each_format
@settings(max_examples=80, deadline=None)
@given(text=OUTPUTS)
def test_calls_are_whole_and_counted_whatever_comes(tool_format: ToolFormat, text: str) -> None:
    events = read(text, tool_format)
    begun = [event.index for event in events if isinstance(event, CallBegins)]
    assert begun == [event.index for event in events if isinstance(event, CallEnds)] == list(range(len(begun)))
    if tool_format is not LLAMA3_JSON and not any(marker in text for marker in tool_format.begin_markers):
        assert begun == []
