"""Requests at and past the limits of context, cache and emptiness: refused with the true numbers, never in the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pageport import LLM, SamplingParams
from pageport.errors import OutOfMemory, RequestTooLong
from pageport.testing.tiny_model import BOS, write_tiny_llama

from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long-llama", max_position_embeddings=4096)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_request_past_the_context_names_the_context_the_prompt_and_what_was_asked(
    open_llm: OpenLLM, long_llama: Path, path: str, stream: bool
) -> None:
    """LIM-01: 8 tokens and 2045 more in a context of 2048; the numbers, and never the difference as a maximum."""
    server = LocalServer(open_llm(long_llama, max_model_len=2048, num_kv_blocks=200))
    prompt = "abcdefgh" if path == PATHS[0] else ""
    num_prompt_tokens = 8 if prompt else len("<bos>[user] \n[assistant] ") - 4
    body: dict[str, Any] = {"prompt": prompt, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    response = server.post(path, **body, max_tokens=2045)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert response.json()["error"]["message"] == (
        f"This model's context is 2048 tokens; the prompt has {num_prompt_tokens} and max_tokens asks for 2045, "
        f"{num_prompt_tokens + 2045} together. Lower max_tokens to at most {2048 - num_prompt_tokens}, or shorten the "
        "prompt."
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_the_limit_itself_is_allowed(open_scripted: OpenLLM, path: str, stream: bool) -> None:
    """LIM-01: the last request that fits fills the context, and one token more is too many."""
    server = LocalServer(open_scripted([b"x"] * 121, num_prompt_tokens=8))
    assert server.say(path, "abcdefgh", stream=stream, max_tokens=120).text == "x" * 120
    body = {"prompt": "abcdefgh", "messages": [{"role": "user", "content": "abcdefgh"}], "stream": stream}
    assert server.post(path, **body, max_tokens=121).status_code == 400


def test_a_context_larger_than_the_cache_is_refused_at_the_start(open_llm: OpenLLM, long_llama: Path) -> None:
    """LIM-03: when it was asked for; the message says what would fit and which setting to raise."""
    with pytest.raises(OutOfMemory, match=r"of 4096 tokens: .* fits is 800\. .* or raise --num-kv-blocks"):
        open_llm(long_llama, num_kv_blocks=50, max_model_len=4096)


def test_a_request_larger_than_the_cache_is_refused_and_holds_up_nobody(open_llm: OpenLLM, long_llama: Path) -> None:
    """LIM-03: 50 blocks of 16 tokens; ten short prompts, one of 1000 tokens, and one behind it."""
    server = LocalServer(open_llm(long_llama, num_kv_blocks=50, max_model_len=None))
    short = [(PATHS[0], {"prompt": f"short {i}", "max_tokens": 8, "ignore_eos": True}) for i in range(11)]
    large = (PATHS[0], {"prompt": [7] * 1000, "max_tokens": 8})
    responses = server.post_all([*short[:10], large, short[10]])
    assert [response.status_code for response in responses] == [200] * 10 + [400, 200]
    message = responses[10].json()["error"]["message"]
    assert "context is 800 tokens, what the KV cache holds (50 blocks of 16); the prompt has 1000" in message
    assert server.llm.stats().kv_blocks_used == 0


def test_a_prompt_that_fits_with_an_output_that_does_not_ends_or_is_refused(
    open_llm: OpenLLM, long_llama: Path
) -> None:
    """LIM-03: refused where max_tokens is too much, "length" where none was given; with a neighbour to preempt."""
    llm = open_llm(long_llama, num_kv_blocks=10, max_model_len=None)
    with pytest.raises(RequestTooLong, match="Lower max_tokens to at most 60"):
        llm.generate([[7] * 100], SamplingParams(max_tokens=61))
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    outputs = llm.generate([[7] * 60, [8] * 50], params, use_tqdm=False)
    choices = [output.outputs[0] for output in outputs]
    assert [(len(c.token_ids), c.finish_reason) for c in choices] == [(100, "length"), (110, "length")]
    assert llm.stats().preemptions_total > 0
    llm._engine.check()


EMPTY: list[Any] = ["", [""], [], [[]], ["", "good"], [[], [97]]]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", EMPTY)
def test_an_empty_prompt_is_refused_where_the_model_has_no_first_token(
    open_scripted: OpenLLM, prompt: Any, echo: bool
) -> None:
    """LIM-05: like Qwen; the whole batch, by the field's name, and a plain request works after it."""
    server = LocalServer(open_scripted([b"x"]))
    response = server.post(PATHS[0], prompt=prompt, echo=echo)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
    assert server.llm.stats().steps_total == 0
    assert server.say(PATHS[0], " ").text == "x"


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize(("prompt", "count"), [("", 1), ([""], 1), ([[]], 1), ([" "], 1), (["", "good"], 2)])
def test_an_empty_prompt_is_the_first_token_where_the_model_has_one(
    open_llm: OpenLLM, tiny_llama: Path, prompt: Any, count: int, echo: bool
) -> None:
    """LIM-05: like LLaMA; what it says is what the first token alone makes it say."""
    llm = open_llm(tiny_llama)
    params = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}
    response = LocalServer(llm).post(PATHS[0], prompt=prompt, echo=echo, **params)
    choices = response.json()["choices"]
    assert (response.status_code, len(choices)) == (200, count)
    if prompt != [" "]:
        (expected,) = llm.generate([[BOS]], SamplingParams(**params), use_tqdm=False)[0].outputs
        assert choices[0]["text"] == expected.text
        assert response.json()["usage"]["prompt_tokens"] == (1 if count == 1 else 5)


def test_no_prompt_at_all_is_refused(open_llm: OpenLLM, tiny_llama: Path) -> None:
    """LIM-05: an empty list names no prompt to complete, whatever the model."""
    response = LocalServer(open_llm(tiny_llama)).post(PATHS[0], prompt=[])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_chat_names_the_field_that_it_has(open_scripted: OpenLLM, field: str) -> None:
    """LIM-01: a conversation that is too long is in ``messages``, too much output in the field that asks."""
    server = LocalServer(open_scripted([b"x"]))
    for content, named in (("a" * 20, field), ("a" * 200, "messages")):
        body = {"messages": [{"role": "user", "content": content}], field: 120}
        assert server.post(PATHS[1], **body).json()["error"]["param"] == named


@pytest.mark.parametrize("echo", [False, True])
def test_an_empty_message_is_what_its_template_makes_of_it(
    open_llm: OpenLLM, open_scripted: OpenLLM, tiny_llama: Path, echo: bool
) -> None:
    """LIM-05: some text around it, or nothing at all, which is refused like an empty prompt."""
    body = {"messages": [{"role": "user", "content": ""}], "max_tokens": 2, "echo": echo}
    assert LocalServer(open_llm(tiny_llama)).post(PATHS[1], **body).status_code == 200
    server = LocalServer(open_scripted([b"x"]))
    response = server.post(PATHS[1], **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
    assert server.say(PATHS[1]).text == "x"


def test_embeddings_of_nothing_are_those_of_what_begins_a_text_or_refused(
    open_llm: OpenLLM, open_scripted: OpenLLM, tiny_llama: Path
) -> None:
    """LIM-05."""
    server = LocalServer(open_llm(tiny_llama))
    answer = server.post("/v1/embeddings", input="").json()
    assert (answer["usage"]["prompt_tokens"], len(answer["data"])) == (1, 1)
    server = LocalServer(open_scripted([b"x"]))
    for nothing in ("", ["a", ""], [], [[]]):
        response = server.post("/v1/embeddings", input=nothing)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
    assert server.say(PATHS[0]).text == "x"
