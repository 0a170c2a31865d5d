"""What ends a text, and exactly where: the engine, ``LLM`` and both endpoints agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pageport import LLM, SamplingParams
from pageport.errors import ConfigurationError
from pageport.testing.scripted_model import write_scripted_model

from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
WORDS = [" three", " four", " five", " six"]
TEXT = "".join(WORDS)
WAYS = [(path, stream) for path in PATHS for stream in (False, True)]
IN_EVERY_WAY = pytest.mark.parametrize(("path", "stream"), WAYS, ids=lambda value: str(value)[:7])
A, B, C = b"A"[0], b"B"[0], b"C"[0]


def cuts(lengths: tuple[int, ...]) -> list[str]:
    """Return every piece of ``TEXT`` of these lengths."""
    pieces = [TEXT[at : at + n] for n in lengths for at in range(len(TEXT) - n + 1)]
    return list(dict.fromkeys(pieces))


def test_no_character_of_a_stop_string_is_shown_wherever_it_is_cut(open_scripted: OpenLLM) -> None:
    """STP-01: pieces of the text that begin and end anywhere in its tokens, and one that only begins in it."""
    llm = open_scripted(WORDS)
    for stop in [*cuts((1, 2, 4, 7, 11, 16, len(TEXT))), " six seven"]:
        params = SamplingParams(temperature=0, max_tokens=20, stop=[stop])
        (choice,) = llm.generate("a", params, use_tqdm=False)[0].outputs
        shown, found, _ = TEXT.partition(stop)
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (shown, "stop", found or None)
        assert "".join(delta.text for delta in llm.stream("a", params)) == shown
    assert llm.stats().kv_blocks_used == 0


@IN_EVERY_WAY
@pytest.mark.parametrize("asked", ["plain", "format", "regex", "tools"])
def test_every_path_cuts_alike(open_scripted: OpenLLM, path: str, stream: bool, asked: str) -> None:
    """STP-01 and STP-03: also where tools or a response format are given, or the text must have a form."""
    tool = {"type": "function", "function": {"name": "f"}}
    more: dict[str, Any] = {
        "plain": {},
        "format": {"response_format": {"type": "text"}},
        "regex": {"structured_outputs": {"regex": "[a-z ]{1,40}"}},
        "tools": {"tools": [tool], "tool_choice": "none"},
    }[asked]
    server = LocalServer(open_scripted(WORDS))
    for stop in cuts((2, 9)):
        said = server.say(path, stream=stream, max_tokens=20, stop=[stop], **more)
        assert (said.text, said.finish_reason) == (TEXT.partition(stop)[0], "stop")


@IN_EVERY_WAY
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("include", "text"), [(False, "x"), (True, "x;y;z")])
def test_the_cut_within_a_token_is_exact_and_every_token_counts(
    open_scripted: OpenLLM, path: str, stream: bool, depth: int, include: bool, text: str
) -> None:
    """STP-04: the model says "x;y;z?", whose last token is "z?", and goes on."""
    server = LocalServer(open_scripted(["x", ";", "y", ";", "z?", "more"], pipeline_depth=depth))
    options = {"stop": [";y;z"], "include_stop_str_in_output": include, "max_tokens": 20}
    said = server.say(path, stream=stream, stream_options={"include_usage": True} if stream else None, **options)
    assert (said.text, said.finish_reason, said.num_tokens) == (text, "stop", 5)


@pytest.mark.parametrize(("include", "tokens"), [(False, ["x"]), (True, ["x", ";", "y", ";", "z?"])])
def test_logprobs_do_not_outlast_the_text(open_scripted: OpenLLM, include: bool, tokens: list[str]) -> None:
    """STP-04: the last token is shown whole although its "?" is not in the text."""
    server = LocalServer(open_scripted(["x", ";", "y", ";", "z?", "more"]))
    options = {"stop": ";y;z", "include_stop_str_in_output": include, "temperature": 0}
    completion = server.post(PATHS[0], prompt="a", logprobs=1, **options).json()["choices"][0]
    assert completion["logprobs"]["tokens"] == tokens
    messages = [{"role": "user", "content": "a"}]
    chat = server.post(PATHS[1], messages=messages, logprobs=True, **options).json()["choices"][0]
    assert [token["token"] for token in chat["logprobs"]["content"]] == tokens


ABSENT = object()


@pytest.mark.parametrize(
    ("config_ids", "generation_ids", "ends"),
    [
        ([A, B], [B, C], {A, B, C}),
        (B, C, {A, B, C}),
        ([B], None, {A, B}),
        (None, [C], {A, C}),
        (None, ABSENT, {A}),
        (ABSENT, ABSENT, {A}),
    ],
)
def test_every_end_token_that_a_file_names_ends_the_text(
    open_llm: OpenLLM, tmp_path: Path, config_ids: Any, generation_ids: Any, ends: set[int]
) -> None:
    """STP-06: the union of tokenizer (A), config and generation config; each forced at step 3, never in the text."""
    for token_id in (A, B, C):
        script = [b"x", b"y", bytes([token_id]), b"z"]
        folder = write_scripted_model(tmp_path / chr(token_id), script, special_tokens={"eos_token": "A"})
        name_end_tokens(folder, config_ids, generation_ids)
        llm = open_llm(folder, max_model_len=64)
        params = SamplingParams(temperature=0, max_tokens=4, skip_special_tokens=False)
        (choice,) = llm.generate("a", params, use_tqdm=False)[0].outputs
        if token_id in ends:
            assert (choice.text, choice.finish_reason, choice.stop_reason) == ("xy", "stop", None)
            assert choice.token_ids == [*b"xy", token_id]
        else:
            assert (choice.text, choice.finish_reason) == (f"xy{chr(token_id)}z", "length")


def name_end_tokens(folder: Path, config_ids: Any, generation_ids: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["eos_token_id"]
    (folder / "config.json").write_text(
        json.dumps(config if config_ids is ABSENT else {**config, "eos_token_id": config_ids})
    )
    if generation_ids is not ABSENT:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_ids}))


@pytest.mark.parametrize("depth", [0, 1])
def test_ignored_end_tokens_do_not_end_the_text(open_llm: OpenLLM, tmp_path: Path, depth: int) -> None:
    """STP-07: a model that ends early and by several tokens gives exactly the 20 that were asked for."""
    folder = write_scripted_model(tmp_path / "model", [b"x", b"A", b"B", "<eos>", b"C", b"y"])
    name_end_tokens(folder, [A, B], [B, C])
    llm = open_llm(folder, max_model_len=64, pipeline_depth=depth)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    (choice,) = llm.generate("a", params, use_tqdm=False)[0].outputs
    assert (len(choice.token_ids), choice.finish_reason, choice.text) == (20, "length", "xABCy")


@IN_EVERY_WAY
@pytest.mark.parametrize("ends_by", ["stop", "stop_token_ids", "eos"])
def test_nothing_ends_the_text_before_min_tokens(open_scripted: OpenLLM, path: str, stream: bool, ends_by: str) -> None:
    """STP-07: a stop string, a stop token and the end token, each likeliest at token 3 and again at token 12."""
    end: bytes | str = "<eos>" if ends_by == "eos" else b"."
    script = [b"a", b"b", end, *(bytes([byte]) for byte in b"defghijk"), end, b"n"]
    fields: dict[str, Any] = {"stop": {"stop": ["."]}, "stop_token_ids": {"stop_token_ids": [46]}, "eos": {}}[ends_by]
    said = LocalServer(open_scripted(script)).say(path, stream=stream, max_tokens=30, min_tokens=10, **fields)
    assert said.finish_reason == "stop"
    assert said.text.startswith("ab")
    assert said.text.removesuffix(".").endswith("defghijk")
    assert "n" not in said.text


@IN_EVERY_WAY
def test_min_tokens_above_max_tokens_is_refused(open_scripted: OpenLLM, path: str, stream: bool) -> None:
    """STP-07."""
    body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": stream}
    response = LocalServer(open_scripted(WORDS)).post(path, **body, min_tokens=11, max_tokens=10)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "min_tokens")


THOUGHT = ["<think>", "9", ".", "8", " or", " more", "</think>", "9", ".", "11"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [("9.8", "<think>"), ("</think>", "<think>9.8 or more"), ("/think>", "<think>9.8 or more<"), ("9.11", None)],
)
def test_thoughts_are_text_like_any_other(open_scripted: OpenLLM, stream: bool, stop: str, text: str | None) -> None:
    """STP-09: without a reasoning parser all is content; a stop string ends it where it first stands, wherever."""
    said = LocalServer(open_scripted(THOUGHT)).say(PATHS[1], stream=stream, max_tokens=30, stop=stop)
    expected = "".join(THOUGHT).partition(stop)[0] if text is None else text
    assert (said.text, said.finish_reason) == (expected, "stop")


def test_a_reasoning_parser_cannot_be_asked_for(open_scripted: OpenLLM) -> None:
    """STP-09: what would tell thoughts from answers is refused by name until it exists."""
    with pytest.raises(ConfigurationError, match="'reasoning_parser'"):
        open_scripted(THOUGHT, reasoning_parser="deepseek_r1")
    messages = [{"role": "user", "content": "a"}]
    response = LocalServer(open_scripted(THOUGHT)).post(PATHS[1], messages=messages, thinking_token_budget=5)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking_token_budget")
