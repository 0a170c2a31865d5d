"""``ToolFormat``: how a family of models writes tool calls. Data only; ``CallReader`` and ``call_grammar`` use it."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CallSyntax:
    """The one way in which calls are written where a grammar enforces them."""

    head: str = ""  # before the first call
    before_name: str = '{"name": '
    before_arguments: str = ', "arguments": '
    after_arguments: str = "}"
    between: str  # two calls
    tail: str = ""  # after the last call
    quotes_name: bool = True  # as a JSON string
    # Text of the chat templates whose models write this way; without one, every template's.
    template_sign: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """What tells a call from text, where its name is, and where its arguments are.

    A call is an object ``{"name": …, "arguments": …}``, or, where ``header`` is given, a name and the object of its
    arguments. White space around calls belongs to the format.
    """

    name: str
    begin_markers: tuple[str, ...]  # calls follow
    end_marker: str = ""  # calls have ended; may be missing
    # May calls also begin the whole output, without a marker? Only calls of known tools are taken for calls then.
    may_stand_alone: bool = False
    may_stand_in_list: bool = False  # [call, call]
    separator: str = ""  # one character, between calls that follow one marker
    argument_keys: tuple[str, ...] = ("arguments",)
    # Other keys that calls have. Where calls stand alone, an object with any further key is none.
    ignored_keys: tuple[str, ...] = ("type", "id")
    header: re.Pattern[str] | None = None  # all that stands before the arguments; its group is the name
    header_markers: tuple[str, ...] = ()  # in headers; special tokens perhaps, as the other markers
    syntaxes: tuple[CallSyntax, ...]  # for grammars: the first whose sign the template has
    # What templates that use this format contain, and what those of similar formats contain.
    template_signs: tuple[str, ...]
    template_countersigns: tuple[str, ...] = ()
    # Ids of calls, as the format's chat templates accept them.
    id_prefix: str = "call_"
    id_length: int = 24  # characters after the prefix

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker: those that are special tokens have to be kept in the text."""
        return (*self.begin_markers, self.end_marker) if self.end_marker else self.begin_markers

    def is_used_by(self, template: str) -> bool:
        """Whether a chat template of this text shows the format to its model."""
        return any(sign in template for sign in self.template_signs) and not any(
            sign in template for sign in self.template_countersigns
        )

    def syntax_for(self, template: str) -> CallSyntax:
        """Choose how the model of a template writes calls."""
        return next((syntax for syntax in self.syntaxes if syntax.template_sign in template), self.syntaxes[0])


# Qwen 2.5 and 3, Hermes 2 and 3, SmolLM3 and many more.
HERMES = ToolFormat(
    name="hermes",
    begin_markers=("<tool_call>",),
    end_marker="</tool_call>",
    syntaxes=(CallSyntax(head="<tool_call>\n", between="\n</tool_call>\n<tool_call>\n", tail="\n</tool_call>"),),
    template_signs=("<tool_call>",),
    # These models write XML within the same marker.
    template_countersigns=("<function=", "<arg_key>"),
)
# Llama 3.1 to 3.3.
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    begin_markers=("<|python_tag|>",),
    may_stand_alone=True,
    separator=";",
    argument_keys=("parameters", "arguments"),
    syntaxes=(CallSyntax(before_arguments=', "parameters": ', between="; "),),
    template_signs=("<|python_tag|>", '{"name": function name, "parameters":'),
)
# Mistral's models: a list after the marker, or, since 2025, a name after each marker.
MISTRAL = ToolFormat(
    name="mistral",
    begin_markers=("[TOOL_CALLS]",),
    may_stand_in_list=True,
    separator=",",
    header=re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\w+\s*)?(?:\[ARGS\])?\s*"),
    header_markers=("[CALL_ID]", "[ARGS]"),
    syntaxes=(
        CallSyntax(
            head="[TOOL_CALLS]",
            before_name="",
            before_arguments="[ARGS]",
            after_arguments="",
            between="[TOOL_CALLS]",
            quotes_name=False,
            template_sign="[ARGS]",
        ),
        CallSyntax(head="[TOOL_CALLS][", between=", ", tail="]"),
    ),
    template_signs=("[TOOL_CALLS]",),
    id_prefix="",
    id_length=9,
)
TOOL_FORMATS = {known.name: known for known in (HERMES, LLAMA3_JSON, MISTRAL)}


def tool_format_of(template: str) -> ToolFormat | None:
    """Find the format that a chat template shows to its model; None: none that is known."""
    return next((known for known in TOOL_FORMATS.values() if known.is_used_by(template)), None)
