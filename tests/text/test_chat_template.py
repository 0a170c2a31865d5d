"""``ChatTemplate``: as transformers renders, in OpenAI's message form, and in a sandbox."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pageport.errors import InvalidParameter
from pageport.text.chat import ChatTemplate
from pageport.text.tokenizer import Tokenizer

from .conftest import build_byte_level

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are helpful<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {{- '{"name": "' + message.tool_calls[0].function.name + '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=0) %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson(indent=2) }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {%- set thought = message.reasoning_content %}
        {%- if thought is string %}{{- '<think>' + thought + '</think>' }}{%- endif %}
        {%- generation %}
            {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
        {%- endgeneration %}
    {%- endif %}
    {%- set ns.seen = loop.index %}
    {%- if ns.seen > 900 %}{%- break %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"""
PARTS = """{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for item in content %}\
{% if item.type == 'text' %}{{ item.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}
{% for message in messages %}<{{ message.role }}>{{ show(message.content) }}
{% endfor %}"""
ONLY_PARTS = "{% for m in messages %}{% for part in m['content'] %}[{{ part['text'] }}]{% endfor %}{% endfor %}"
TEMPLATES = {"smollm": SMOLLM, "llama3": LLAMA3, "gemma": GEMMA, "qwen": QWEN, "parts": PARTS}

TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "<b>\u00e9</b>", "parameters": {"z": 1, "a": [1]}}}
]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "\u65e5", "y": [1, None, True]}}}
TALK = [
    {"role": "user", "content": "  Hi <b> & 'you' \u65e5\u672c  "},
    {"role": "assistant", "content": "Hello\nthere "},
    {"role": "user", "content": "Bye"},
]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = build_byte_level()
    backend.add_special_tokens(["<|begin|>", "<|eot_id|>"])
    return Tokenizer(backend, special_tokens={"bos_token": "<|begin|>", "eos_token": "<|eot_id|>"})


@pytest.fixture(scope="module")
def theirs(tokenizer: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **tokenizer.special_tokens)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("prompt", [True, False])
def test_conversations_render_as_in_transformers(name: str, prompt: bool, tokenizer: Tokenizer, theirs: Any) -> None:
    template = ChatTemplate(TEMPLATES[name], tokenizer)
    for talk in (TALK, TALK[:1], [SYSTEM, *TALK] if name != "gemma" else TALK):
        expected = theirs.apply_chat_template(
            talk, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=prompt
        )
        assert template.render(talk, add_generation_prompt=prompt) == expected


def test_tools_calls_and_their_results_render_as_in_transformers(tokenizer: Tokenizer, theirs: Any) -> None:
    talk = [
        *TALK,
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "42"},
        {"role": "tool", "content": "43"},
        {"role": "assistant", "content": "done", "reasoning": "thought"},
    ]
    options = {"tools": TOOLS, "documents": [{"title": "t", "text": "x"}], "enable_thinking": False}
    expected = theirs.apply_chat_template(
        talk, chat_template=QWEN, tokenize=False, add_generation_prompt=True, **options
    )
    assert ChatTemplate(QWEN, tokenizer).render(talk, **options) == expected
    assert '"z": 1, "a": [1]' in expected


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@pytest.mark.parametrize("ending", ["The answer", "The answer  ", "a <b>"])
def test_continuing_the_final_message_cuts_where_transformers_cuts(
    name: str, ending: str, tokenizer: Tokenizer, theirs: Any
) -> None:
    talk = [TALK[0], {"role": "assistant", "content": ending}]
    expected = theirs.apply_chat_template(
        talk, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    template = ChatTemplate(TEMPLATES[name], tokenizer)
    assert template.render(talk, add_generation_prompt=False, continue_final_message=True) == expected


@pytest.mark.smollm2
def test_smollm2_chat_ids_equal_those_of_transformers(smollm2: Tokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=smollm2.backend, **smollm2.special_tokens)
    source = str(smollm2.chat_template)
    for talk in (TALK, [SYSTEM, *TALK]):
        expected = theirs.apply_chat_template(talk, chat_template=source, add_generation_prompt=True)
        assert ChatTemplate(source, smollm2).encode(talk) == expected["input_ids"]


def test_a_chat_has_exactly_one_bos(tokenizer: Tokenizer) -> None:
    """TPL-06."""
    ids = ChatTemplate(LLAMA3, tokenizer).encode(TALK)
    assert ids.count(256) == 1
    assert ids[0] == 256


def test_a_refusal_of_the_template_carries_its_message(tokenizer: Tokenizer) -> None:
    """TPL-01."""
    template = ChatTemplate(GEMMA, tokenizer)
    with pytest.raises(InvalidParameter, match="refuses these messages: System role not supported"):
        template.render([SYSTEM, *TALK])
    with pytest.raises(InvalidParameter, match="roles must alternate"):
        template.render([TALK[0], TALK[2]])
    assert template.render(TALK).startswith("<|begin|>")


@pytest.mark.parametrize("name", ["smollm", "qwen", "llama3", "parts"])
def test_missing_null_and_empty_content_render_the_same(name: str, tokenizer: Tokenizer) -> None:
    """TPL-03, TPL-04."""
    template = ChatTemplate(TEMPLATES[name], tokenizer)
    forms: list[dict[str, Any]] = [{}, {"content": None}, {"content": ""}, {"content": []}]
    call = {"role": "assistant", "tool_calls": [CALL]}
    rendered = {
        template.render([*TALK, {**call, **form}, {"role": "tool", "tool_call_id": "1", "content": "42"}])
        for form in forms
    }
    assert len(rendered) == 1
    assert "None" not in rendered.pop()


def test_null_content_is_not_printed_by_an_unguarded_template() -> None:
    """TPL-04."""
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}{{ m.tool_calls[0].function.name }}]{% endfor %}")
    assert template.render([{"role": "assistant", "content": None, "tool_calls": [CALL]}]) == "[f]"


def test_arguments_in_json_text_reach_the_template_as_an_object(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(QWEN, tokenizer)
    as_text = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\u65e5", "y": [1, null, true]}'}}
    talk = [[*TALK, {"role": "assistant", "tool_calls": [call]}] for call in (CALL, as_text)]
    assert template.render(talk[0]) == template.render(talk[1])


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_text_parts_are_joined_with_newlines_for_a_template_of_strings(role: str) -> None:
    """TPL-08."""
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([{"role": role, "content": parts}]) == f"<{role}>a\nb"


def test_parts_and_strings_reach_templates_that_read_parts_in_their_form() -> None:
    """TPL-08."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    string = [{"role": "user", "content": "ab"}]
    assert ChatTemplate(PARTS).render(parts) == ChatTemplate(PARTS).render(string) == "<user>ab\n"
    assert ChatTemplate(ONLY_PARTS).render(parts) == "[a][b]"
    assert ChatTemplate(ONLY_PARTS).render(string) == "[ab]"


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "odd", "odd": 1}, {"type": "text"}, {"text": "a"}, 5],
)
@pytest.mark.parametrize("source", [SMOLLM, PARTS])
def test_other_parts_are_refused(part: Any, source: str) -> None:
    """TPL-08."""
    with pytest.raises(InvalidParameter, match="content part") as caught:
        ChatTemplate(source).render([{"role": "user", "content": [part]}])
    assert caught.value.parameter == "messages"


@pytest.mark.parametrize("message", [{}, {"content": "a"}, {"role": 1}, "hi", {"role": "user", "content": 5}])
def test_malformed_messages_are_refused(message: Any) -> None:
    with pytest.raises(InvalidParameter, match="message"):
        ChatTemplate(SMOLLM).render([message])


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="messages is empty"):
        ChatTemplate(SMOLLM).render([])


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(InvalidParameter, match=r"no chat template. Pass one .* or use completions"):
        ChatTemplate(None).render(TALK)
    with pytest.raises(InvalidParameter, match=r"no default chat template among its templates \(rag\)"):
        ChatTemplate({"rag": "x"}).render(TALK)


def test_the_template_for_tools_is_taken_when_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert (template.render(TALK), template.render(TALK, tools=TOOLS)) == ("plain", "tools")


def test_a_broken_template_is_an_error_of_the_request_not_of_the_start() -> None:
    template = ChatTemplate("{% for %}")
    with pytest.raises(InvalidParameter, match=r"is not valid: .*line 1"):
        template.render(TALK)


def test_the_clock_of_the_template_can_be_given() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2026, 11, 29))
    assert template.render(TALK) == "29 Nov 2026"


def test_text_that_spells_a_special_token_is_that_token_as_in_transformers(tokenizer: Tokenizer, theirs: Any) -> None:
    """TPL-09: the documented policy."""
    talk = [{"role": "user", "content": "hi<|eot_id|>x"}]
    expected = theirs.apply_chat_template(talk, chat_template=LLAMA3, add_generation_prompt=True)
    assert ChatTemplate(LLAMA3, tokenizer).encode(talk) == expected["input_ids"]


ESCAPES = (
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__['os'].popen('touch MARK').read() }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{{ namespace(__class__=1) }}",
    "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ ('{0.__class__.__init__.__globals__}').format(cycler) }}",
    "{{ self.__init__.__globals__ }}",
    "{% include '/etc/passwd' %}",
)


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_reaches_python_or_changes_the_messages(source: str, tmp_path: Path) -> None:
    """SEC-03."""
    mark = tmp_path / "mark"
    talk = [{"role": "user", "content": "hi"}]
    try:
        text = ChatTemplate(source.replace("MARK", str(mark))).render(talk)
    except InvalidParameter:
        text = ""
    assert text.strip() in ("", "{}")
    assert not mark.exists()
    assert talk == [{"role": "user", "content": "hi"}]


RUNAWAYS = (
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'a' * 9999) %}{% endfor %}",
    "{% set x %}{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 5 }}",
    "{{ 'x'.ljust(10 ** 10) }}",
    "{{ 'x' | center(10 ** 10) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%9999999999d' | format(1) }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ [1] | batch(10 ** 10, 0) | list }}",
    "{{ range(10 ** 10) | list }}",
    "{{ lipsum(n=10 ** 9) }}",
    "{{ (['x' * 9999999] * 99999) | join }}",
)


@pytest.mark.parametrize("source", RUNAWAYS)
@pytest.mark.timeout(30)
def test_no_template_runs_or_grows_without_end(source: str) -> None:
    with pytest.raises(InvalidParameter):
        ChatTemplate(source).render(TALK)


def test_a_conversation_of_thousands_of_messages_is_within_the_budget(tokenizer: Tokenizer) -> None:
    """SEC-11."""
    talk = [{"role": ("user", "assistant")[i % 2], "content": "a" * 500} for i in range(5000)]
    assert len(ChatTemplate(SMOLLM, tokenizer).render(talk)) > 2_500_000
