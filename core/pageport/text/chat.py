"""``ChatTemplate``: a conversation as the text that a model was trained on."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from pageport.errors import InvalidParameter
from pageport.text.template_sandbox import RenderBudget, TemplateSandbox
from pageport.text.tokenizer import ChatTemplateSource, Tokenizer

Message = Mapping[str, Any]

# A message's reasoning goes by these names; templates read the first, some the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class ChatTemplate:
    """A model's chat template, rendered as transformers renders it.

    Messages come in OpenAI's form. The text parts of a message are joined with newlines for a template that expects
    strings, and a string becomes one part for a template that only reads parts. A missing, null or empty content is
    the empty string. Tool call arguments given as JSON text are parsed, as templates expect objects.
    """

    def __init__(
        self,
        source: ChatTemplateSource | None,
        tokenizer: Tokenizer | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Keep the source; it is compiled on first use.

        Args:
            source: Jinja text, or several by name (``default``, ``tool_use``); None: the model has none.
            tokenizer: whose special tokens the template may print.
            now: the clock behind ``strftime_now``.
        """
        self._sources = {"default": source} if isinstance(source, str) else dict(source or {})
        self._special_tokens = dict(tokenizer.special_tokens) if tokenizer is not None else {}
        self._tokenizer = tokenizer
        self._sandbox = TemplateSandbox(now)
        self._compiled: dict[str, _Compiled] = {}

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the prompt's text.

        Args:
            messages: the conversation; not changed.
            tools: JSON schemas of functions.
            add_generation_prompt: end with the header of the assistant's answer.
            continue_final_message: end within the last message instead, so that the model goes on with it.
            documents: for templates that know retrieval.
            kwargs: further variables of the template, such as ``enable_thinking``.

        Raises:
            InvalidParameter: there is no template, the messages are malformed, or the template refuses them: then
                with the template's own message.
        """
        if not messages:
            raise InvalidParameter("messages is empty. Give at least one message.", parameter="messages")
        if continue_final_message and add_generation_prompt:
            raise InvalidParameter(
                "continue_final_message and add_generation_prompt exclude each other. Set one of them to false.",
                parameter="continue_final_message",
            )
        compiled = self._choose(has_tools=bool(tools))
        chat = [_normalise(message, compiled) for message in messages]
        ending = _mark_final(chat) if continue_final_message else ""
        variables = {
            **self._special_tokens,
            **_plain(kwargs, "chat_template_kwargs"),
            "messages": chat,
            "tools": _plain(list(tools), "tools") if tools is not None else None,
            "documents": _plain(list(documents), "documents") if documents is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(compiled.template, variables)
        return _cut_at_mark(text, ending) if continue_final_message else text

    @property
    def text(self) -> str:
        """The source of all templates: what their models' formats can be told from."""
        return "\n".join(self._sources.values())

    def encode(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Render and return token ids; the template writes the special tokens, so none are added."""
        if self._tokenizer is None:
            raise InvalidParameter("This model has no tokenizer. Send prompt_token_ids.", parameter="messages")
        return self._tokenizer.encode(self.render(messages, **options), add_special_tokens=False)

    def _choose(self, *, has_tools: bool) -> "_Compiled":
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            named = f" among its templates ({', '.join(sorted(self._sources))})" if self._sources else ""
            raise InvalidParameter(
                f"This model has no {'default ' if named else ''}chat template{named}. Pass one (--chat-template, or "
                "chat_template in the request), or use completions with a plain prompt.",
                parameter="messages",
            )
        if name not in self._compiled:
            self._compiled[name] = self._compile(self._sources[name])
        return self._compiled[name]

    def _compile(self, source: str) -> "_Compiled":
        try:
            return _Compiled(self._sandbox, source)
        except TemplateSyntaxError as error:
            raise InvalidParameter(
                f"The chat template is not valid: {error.message} (line {error.lineno}). Pass another one.",
                parameter="chat_template",
            ) from error

    def _run(self, template: Template, variables: Mapping[str, Any]) -> str:
        try:
            return self._sandbox.run(template, variables, RenderBudget())
        except SecurityError as error:
            raise InvalidParameter(
                f"The chat template was stopped: {error.message}. Pass another one.", parameter="chat_template"
            ) from error
        except TemplateError as error:
            raise InvalidParameter(
                f"The chat template refuses these messages: {error.message}", parameter="messages"
            ) from error
        except Exception as error:  # a template can fail in any way that an expression can
            raise InvalidParameter(
                f"The chat template fails on these messages: {type(error).__name__}: {error}", parameter="messages"
            ) from error


class _Compiled:
    """A template, and what it expects of a message's content."""

    def __init__(self, sandbox: TemplateSandbox, source: str) -> None:
        tree = sandbox.parse(source)
        self.template = sandbox.prepare(source)
        self.reads_parts = _loops_over_content(tree)
        self.reads_only_parts = self.reads_parts and not any(
            test.name == "string" for test in tree.find_all(nodes.Test)
        )


def _loops_over_content(tree: nodes.Template) -> bool:
    aliases = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, aliases):
            aliases.add(assignment.target.name)
    return any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, aliases: set[str]) -> bool:
    if isinstance(node, nodes.Filter):
        return _is_content(node.node, aliases)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in aliases


def _normalise(message: Message, template: _Compiled) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidParameter(
            f"A message is {message!r:.200}. Give objects with a role and a content.", parameter="messages"
        )
    # Clients send null for what is absent, and templates print it as None.
    given = {key: value for key, value in message.items() if value is not None}
    result: dict[str, Any] = _plain(given, "messages")
    result["content"] = _content(result.get("content", ""), template)
    if isinstance(calls := result.get("tool_calls"), list):
        result["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = next((result[name] for name in _REASONING if name in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _content(content: Any, template: _Compiled) -> str | list[dict[str, Any]]:
    if isinstance(content, list):
        texts = [_part_text(part) for part in content]
        if template.reads_parts and texts:
            return [{"type": "text", "text": text} for text in texts]
        content = "\n".join(texts)
    if not isinstance(content, str):
        raise InvalidParameter(
            f"A message's content is {content!r:.200}. Give text, or a list of parts.", parameter="messages"
        )
    return [{"type": "text", "text": content}] if template.reads_only_parts else content


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal"):
        raise InvalidParameter(
            f"A content part of type {kind!r} cannot be used: this model takes text only. Send parts of type 'text'.",
            parameter="messages",
        )
    text = part.get(kind)
    if not isinstance(text, str):
        raise InvalidParameter(
            f"A content part of type {kind!r} has {text!r:.200} as its {kind}. Give a string.", parameter="messages"
        )
    return text


def _tool_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except json.JSONDecodeError:
        # A model may have written arguments that are no JSON: the template gets the text.
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _plain(value: Any, parameter: str) -> Any:
    """Copy to plain JSON types, so that a template meets no other object and cannot reach the caller's."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, parameter) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, parameter) for item in value]
    raise InvalidParameter(
        f"{parameter} holds a {type(value).__name__}, which a chat template cannot use. Give plain JSON values.",
        parameter=parameter,
    )


def _mark_final(chat: list[dict[str, Any]]) -> str:
    """Append the mark to the last message's text and return that text."""
    content = chat[-1]["content"]
    if isinstance(content, str):
        chat[-1]["content"] = content + _CONTINUE_MARK
        return content
    text: str = content[-1]["text"]
    content[-1]["text"] = text + _CONTINUE_MARK
    return text


def _cut_at_mark(text: str, ending: str) -> str:
    mark = _CONTINUE_MARK.strip()
    if mark not in text or ending.strip() not in text:
        raise InvalidParameter(
            "continue_final_message is set, but the chat template does not show the final message as it is. "
            "Set it to false, or end with another message.",
            parameter="continue_final_message",
        )
    at = text.rindex(mark)
    # The template may have trimmed the message, whose own trailing spaces are then gone too.
    return text[:at] if text[at:].startswith(_CONTINUE_MARK) else text[:at].rstrip()
