"""``call_grammar``: the grammar of outputs that call a tool, in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pageport.text.tool_calls.reasoning_format import ReasoningFormat
from pageport.text.tool_calls.tool_format import CallSyntax

# At most one space between tokens: left to themselves, some models write blanks without end.
_STYLE = {"whitespace_flexible": True, "whitespace_pattern": " ", "item_separator": ",", "key_separator": ":"}


@dataclass(frozen=True, kw_only=True)
class ToolSchema:
    """A tool's name and the JSON schema of its arguments, None where it takes none."""

    name: str
    parameters: Mapping[str, Any] | None


def call_grammar(
    syntax: CallSyntax,
    tools: Sequence[ToolSchema],
    *,
    is_parallel: bool,
    reasoning: ReasoningFormat | None = None,
    is_reasoning: bool = False,
    special_ids: Mapping[str, int] | None = None,
) -> str:
    """Describe calls of one of ``tools``, or of several where ``is_parallel``.

    Args:
        syntax: how calls are written.
        tools: at least one.
        is_parallel: whether more than one call may come.
        reasoning: what may come before the calls.
        is_reasoning: the output begins within reasoning.
        special_ids: special tokens, which have no text in a grammar.
    """
    special = special_ids or {}
    more = f" ({_text(syntax.between, special)} call)*" if is_parallel else ""
    calls = " ".join(part for part in (_text(syntax.head, special), f"call{more}", _text(syntax.tail, special)) if part)
    lines = [f"calls: {calls}", "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    if reasoning is None:
        lines.insert(0, "start: calls")
    else:
        begin = _text(reasoning.begin_marker, special)
        lines.insert(0, "start: thought calls" if is_reasoning else f"start: ({begin} thought)? calls")
        lines += _thought(reasoning.end_marker, special)
    for index, tool in enumerate(tools):
        name = json.dumps(tool.name) if syntax.quotes_name else tool.name
        before = _text(syntax.before_name + name + syntax.before_arguments, special)
        after = f" {_text(syntax.after_arguments, special)}" if syntax.after_arguments else ""
        lines.append(f"call_{index}: {before} %json {json.dumps(_arguments_schema(tool))}{after}")
    return "\n".join(lines) + "\n"


def _thought(end_marker: str, special_ids: Mapping[str, int]) -> list[str]:
    if end_marker in special_ids:
        return [f"thought: /(.|\\n)*/ {_text(end_marker, special_ids)} /\\n?\\n?/"]
    return ["thought: reasoning /\\n?\\n?/", f"reasoning[suffix={json.dumps(end_marker)}]: /(.|\\n)*/"]


def _arguments_schema(tool: ToolSchema) -> dict[str, Any]:
    if not tool.parameters:
        schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    else:
        schema = {"type": "object", **tool.parameters}
    return {**schema, "x-guidance": _STYLE}


def _text(text: str, special_ids: Mapping[str, int]) -> str:
    """Write text as literals, and the special tokens in it by their ids."""
    if not special_ids:
        return json.dumps(text, ensure_ascii=False) if text else ""
    parts = re.split("(" + "|".join(map(re.escape, special_ids)) + ")", text)
    return " ".join(
        f"<[{special_ids[part]}]>" if part in special_ids else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )
