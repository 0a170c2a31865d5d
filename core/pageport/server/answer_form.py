"""``AnswerForm``: how the model's text becomes reasoning, content and tool calls in one request."""

from collections.abc import Mapping

from pageport.errors import InvalidParameter
from pageport.sampling.structured import StructuredOutput
from pageport.server.chat_prompt import chat_template, message_text
from pageport.server.errors import quote
from pageport.server.protocol.chat import ChatRequest, NamedToolChoice, Tool
from pageport.server.service import Service
from pageport.server.structured import structured_output
from pageport.text.tool_calls.call_grammar import ToolSchema, call_grammar
from pageport.text.tool_calls.call_reader import CallReader
from pageport.text.tool_calls.output_parser import OutputParser
from pageport.text.tool_calls.reasoning_format import REASONING_FORMATS, ReasoningFormat, reasoning_format_of
from pageport.text.tool_calls.reasoning_reader import ReasoningReader
from pageport.text.tool_calls.tool_format import ToolFormat


class AnswerForm:
    """The formats that hold for a request, from the server's settings, the chat template and the request's tools.

    Raises:
        InvalidParameter: names the field about tools that cannot be honoured.
    """

    def __init__(self, service: Service, body: ChatRequest, prompt: str) -> None:
        """Check what ``body`` asks of tools; ``prompt`` is what the template made of it."""
        self._body = body
        self._template = chat_template(service, body).text
        self._tools = _tools_to_call(body)
        self.tool_format = self._choose_tool_format(service) if self._tools else None
        self._reasoning = self._choose_reasoning_format(service)
        # Another form of the output holds from its first token on, and leaves no room for reasoning.
        self._begins_with_reasoning = False
        self.asked = structured_output(body)
        if self.asked is None:
            self._begins_with_reasoning = self._is_reasoning_open_after(prompt)
        elif self._demands_call:
            raise InvalidParameter(
                "tool_choice demands a call, whose form the tool decides. Leave out the other form of the output, or "
                "set tool_choice to auto.",
                "tool_choice",
            )
        self._special_ids = _special_ids(service, self._reasoning, self.tool_format)

    @property
    def needs_special_tokens(self) -> bool:
        """Whether markers are special tokens, which are left out of text otherwise."""
        return bool(self._special_ids)

    @property
    def may_reason(self) -> bool:
        return self._reasoning is not None

    def parser(self) -> OutputParser:
        """Return a reader of one choice's text."""
        reasoning = calls = None
        if self._reasoning is not None:
            reasoning = ReasoningReader(self._reasoning, is_open=self._begins_with_reasoning)
        if self.tool_format is not None:
            names = [tool.function.name for tool in self._tools]
            calls = CallReader(self.tool_format, names, max_calls=None if self._is_parallel else 1)
        return OutputParser(reasoning, calls)

    def structured(self) -> StructuredOutput | None:
        """Return what forces the model to call, where the request demands that.

        Raises:
            InvalidParameter: a tool's parameters are no object.
        """
        if self.tool_format is None or not self._demands_call:
            return None
        for tool in self._tools:
            kind = (tool.function.parameters or {}).get("type", "object")
            if kind != "object":
                raise InvalidParameter(
                    f"The parameters of {quote(tool.function.name)} have the type {quote(kind)}. Make it 'object'.",
                    "tools",
                )
        grammar = call_grammar(
            self.tool_format.syntax_for(self._template),
            [ToolSchema(name=tool.function.name, parameters=tool.function.parameters) for tool in self._tools],
            is_parallel=self._is_parallel and self._body.tool_choice == "required",
            reasoning=self._reasoning,
            is_reasoning=self._begins_with_reasoning,
            special_ids=self._special_ids,
        )
        return StructuredOutput(grammar=grammar, parameter="tools")

    def _choose_tool_format(self, service: Service) -> ToolFormat:
        chosen, known = service.config.tool_format, service.extensions
        tool_format = known.tool_format_of(self._template) if chosen == "auto" else known.tool_formats.get(chosen)
        if tool_format is None:
            raise InvalidParameter(
                f"tools cannot be called: the chat template of {service.model_name} shows no format of calls that is "
                "known here. Set tool_choice to none, or start the server with --tool-format.",
                "tools",
            )
        return tool_format

    def _choose_reasoning_format(self, service: Service) -> ReasoningFormat | None:
        chosen = service.config.reasoning_format
        return reasoning_format_of(self._template) if chosen == "auto" else REASONING_FORMATS.get(chosen)

    def _is_reasoning_open_after(self, prompt: str) -> bool:
        continued = message_text(self._body.messages[-1]) if self._body.continue_final_message else ""
        return self._reasoning is not None and self._reasoning.is_open_after(prompt, continued)

    @property
    def _demands_call(self) -> bool:
        return bool(self._tools) and self._body.tool_choice not in (None, "auto")

    @property
    def _is_parallel(self) -> bool:
        return self._body.parallel_tool_calls is not False


def _tools_to_call(body: ChatRequest) -> list[Tool]:
    """Return the tools that the answer may call."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidParameter("tool_choice asks for a tool, but there are no tools.", "tool_choice")
        return []
    if choice == "none":
        return []
    if not isinstance(choice, NamedToolChoice):
        return body.tools
    named = [tool for tool in body.tools if tool.function.name == choice.function.name]
    if not named:
        raise InvalidParameter(
            f"tool_choice names {quote(choice.function.name)}, which is not among the tools. Name one that is.",
            "tool_choice",
        )
    return named[:1]


def _special_ids(
    service: Service, reasoning: ReasoningFormat | None, tool_format: ToolFormat | None
) -> Mapping[str, int]:
    """Find the markers that are special tokens, also those that only grammars write."""
    texts: list[str] = []
    if reasoning is not None:
        texts += [reasoning.begin_marker, reasoning.end_marker]
    if tool_format is not None:
        texts += [*tool_format.markers, *tool_format.header_markers]
    tokenizer = service.engine.tokenizer
    found = {text: tokenizer.backend.token_to_id(text) for text in texts}
    return {text: token_id for text, token_id in found.items() if token_id in tokenizer.all_special_ids}
