"""``call_grammar``: what the grammar library takes for an output that calls, the reader takes for that call."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from pageport.text.tool_calls.call_grammar import ToolSchema, call_grammar
from pageport.text.tool_calls.call_reader import CallReader
from pageport.text.tool_calls.events import CallArguments, CallBegins, CallEnds
from pageport.text.tool_calls.reasoning_format import THINK
from pageport.text.tool_calls.tool_format import HERMES, LLAMA3_JSON, MISTRAL, ToolFormat

TOOLS = (
    ToolSchema(name='f"\\', parameters={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    ToolSchema(name="g", parameters=None),
    ToolSchema(name="h", parameters={"properties": {"b": {"enum": ["x"]}}}),
)
ONE = {
    "hermes": '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "g", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "g", "arguments": {}}]',
}
TWO = {
    "hermes": f'{ONE["hermes"]}\n<tool_call>\n{{"name": "f\\"\\\\", "arguments": {{"a": 1}}}}\n</tool_call>',
    "llama3_json": f'{ONE["llama3_json"]}; {{"name": "f\\"\\\\", "parameters": {{"a": 1}}}}',
    "mistral": f'{ONE["mistral"][:-1]}, {{"name": "f\\"\\\\", "arguments": {{"a": 1}}}}]',
}
each_format = pytest.mark.parametrize("tool_format", (HERMES, LLAMA3_JSON, MISTRAL), ids=lambda known: known.name)


def takes(grammar: str, text: str) -> bool:
    """Whether ``text`` is all of an output of ``grammar``."""
    tokenizer = LLTokenizer("byte")
    assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar), tokenizer)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar))
    token_ids = list(text.encode())
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@each_format
def test_calls_are_held_to_the_schemas_of_the_tools(tool_format: ToolFormat) -> None:
    grammar = call_grammar(tool_format.syntaxes[-1], TOOLS, is_parallel=True)
    one, two = ONE[tool_format.name], TWO[tool_format.name]
    assert takes(grammar, one)
    assert takes(grammar, two)
    for wrong in (
        "",
        "Sure. " + one,
        one.replace('"g"', '"i"'),
        one.replace("{}", '{"c": 1}'),
        two.replace("1", '"1"'),
    ):
        assert not takes(grammar, wrong)


@each_format
def test_the_reader_finds_the_calls_of_the_grammar(tool_format: ToolFormat) -> None:
    reader = CallReader(tool_format, [tool.name for tool in TOOLS])
    assert reader.push(TWO[tool_format.name]) + reader.finish() == [
        CallBegins(0, "g"), CallArguments(0, "{}"), CallEnds(0),
        CallBegins(1, 'f"\\'), CallArguments(1, '{"a": 1}'), CallEnds(1),
    ]  # fmt: skip


@each_format
def test_one_call_is_all_where_calls_are_not_parallel(tool_format: ToolFormat) -> None:
    grammar = call_grammar(tool_format.syntaxes[-1], TOOLS, is_parallel=False)
    assert takes(grammar, ONE[tool_format.name])
    assert not takes(grammar, TWO[tool_format.name])


def test_the_newer_syntax_of_a_family_shows_in_the_template() -> None:
    syntax = MISTRAL.syntax_for("… [TOOL_CALLS] … [ARGS] …")
    grammar = call_grammar(syntax, TOOLS[1:], is_parallel=True)
    assert takes(grammar, '[TOOL_CALLS]h[ARGS]{"b": "x"}[TOOL_CALLS]g[ARGS]{}')
    assert MISTRAL.syntax_for("… [TOOL_CALLS] …") is not syntax


@pytest.mark.parametrize("gap", ["", "\n", "\n\n"])
def test_reasoning_may_come_first(gap: str) -> None:
    call = ONE["hermes"]
    free = call_grammar(HERMES.syntaxes[0], TOOLS, is_parallel=True, reasoning=THINK)
    begun = call_grammar(HERMES.syntaxes[0], TOOLS, is_parallel=True, reasoning=THINK, is_reasoning=True)
    assert takes(free, call)
    assert takes(free, f"<think>\nwhy < not?\n</think>{gap}{call}")
    assert takes(begun, f"\nwhy\n</think>{gap}{call}")
    assert not takes(begun, call)
    assert not takes(free, f"<think>why</think>so{call}")


def test_special_tokens_are_written_by_their_ids() -> None:
    special = {"[TOOL_CALLS]": 257, "[ARGS]": 258, "<think>": 259, "</think>": 260}
    grammar = call_grammar(MISTRAL.syntaxes[0], TOOLS[1:2], is_parallel=True, reasoning=THINK, special_ids=special)
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar))
    token_ids = [259, *b"why", 260, 257, *b"g", 258, *b"{}", 257, *b"g", 258, *b"{}"]
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    assert matcher.is_accepting()
    assert not takes(grammar, "[TOOL_CALLS]g[ARGS]{}")
