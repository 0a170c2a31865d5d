"""From a ``StructuredOutput`` to what llguidance compiles, and the limits it compiles within.

The module imports llguidance when it is called: most servers never need it.
"""

import json
from typing import TYPE_CHECKING

from pageport.sampling.structured import StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLParserLimits

# Most symbols in a grammar's productions; most states of its lexer, of about 2 kB each; most items of the parser at
# one byte, which an object of so many optional properties needs, and in one step.
MAX_GRAMMAR_SIZE = 100_000
MAX_LEXER_STATES = 20_000
MAX_ITEMS_IN_ROW = 10_000
MAX_ITEMS_IN_STEP = 100_000


def grammar_text(structured: StructuredOutput) -> str:
    """Write the grammar in llguidance's own form; whether it compiles is found out when it is.

    Raises:
        ValueError: the schema is nested too deeply to be read.
    """
    from llguidance import LLMatcher

    if structured.json_schema is not None:
        return _of_schema(structured.json_schema, structured.allows_whitespace)
    if structured.json_object:
        return _of_schema('{"type": "object"}', structured.allows_whitespace)
    if structured.regex is not None:
        return LLMatcher.grammar_from_regex(structured.regex)
    if structured.choice is not None:
        # Lark writes a literal as JSON writes a string. A terminal costs a step less than a rule of as many options.
        options = " | ".join(json.dumps(text) for text in structured.choice)
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {options}")
    assert structured.grammar is not None
    return LLMatcher.grammar_from_lark(structured.grammar)


def grammar_limits() -> "LLParserLimits":
    """Return what compiling and every step may cost."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SIZE,
        max_lexer_states=MAX_LEXER_STATES,
        max_items_in_row=MAX_ITEMS_IN_ROW,
        step_max_items=MAX_ITEMS_IN_STEP,
        # Eagerly, this would cost a pass over the vocabulary for each lexeme, which no limit bounds.
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _of_schema(schema: str, allows_whitespace: bool) -> str:
    from llguidance import LLMatcher

    # Given as overrides, so that a schema's own ``x-guidance`` cannot change them; they need an object.
    return LLMatcher.grammar_from_json_schema(
        "{}" if schema.strip() == "true" else schema,
        overrides={
            "item_separator": ",",
            "key_separator": ":",
            "whitespace_flexible": allows_whitespace,
            "whitespace_pattern": " " if allows_whitespace else None,
            "coerce_one_of": False,
            "lenient": False,
        },
    )
