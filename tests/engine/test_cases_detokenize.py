"""Text that is cut between the bytes of a character, from the engine through both endpoints."""

from collections.abc import Callable

import pytest

from pageport import LLM, SamplingParams

from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenScripted = Callable[..., LLM]
MIXED = "naïve 🔥 žluťoučký 日本 👨‍👩‍👧"
EVERYWHERE = pytest.mark.parametrize(
    ("path", "stream"), [(path, stream) for path in PATHS for stream in (False, True)], ids=lambda value: str(value)[:7]
)


def in_bytes(text: str | bytes) -> list[bytes]:
    data = text.encode() if isinstance(text, str) else text
    return [bytes([byte]) for byte in data]


@pytest.mark.parametrize("path", PATHS)
def test_streamed_characters_are_never_shown_in_part(open_scripted: OpenScripted, path: str) -> None:
    """DET-01: one byte a step; the deltas join to what decoding all ids at once gives, and none holds U+FFFD."""
    llm = open_scripted(in_bytes(MIXED))
    said = LocalServer(llm).say(path, stream=True, max_tokens=100)
    assert said.text == llm.get_tokenizer().decode(list(MIXED.encode())) == MIXED
    assert not any("\ufffd" in text for text in said.texts)
    assert len([text for text in said.texts if text]) == len(MIXED)
    assert said.finish_reason == "stop"


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_may_end_anywhere_within_a_character(open_scripted: OpenScripted, path: str) -> None:
    """DET-02: at every length; the incomplete bytes come once, as U+FFFD, streamed or not."""
    text = "é🔥日!"
    server = LocalServer(open_scripted(in_bytes(text)))
    for length in range(1, len(text.encode())):
        streamed = server.say(path, stream=True, max_tokens=length)
        assert streamed.text == text.encode()[:length].decode("utf-8", "replace"), length
        assert server.say(path, max_tokens=length).text == streamed.text
        assert streamed.finish_reason == "length"
        assert "\ufffd" not in "".join(streamed.texts[:-2])


@pytest.mark.parametrize(
    "data", [b"\xc4\xc4 ab", b"\xf0\x9f\x9f\xc3z", b"\x80\x80\x80ok", b"\xed\xa0\x80x", b"\xff" * 20 + b"end"]
)
@pytest.mark.parametrize("path", PATHS)
def test_bytes_that_never_become_text_do_not_hold_back_the_rest(
    open_scripted: OpenScripted, path: str, data: bytes
) -> None:
    """DET-02: the good text behind them comes, and both ways say the same."""
    server = LocalServer(open_scripted(in_bytes(data)))
    expected = data.decode("utf-8", "replace")
    streamed = server.say(path, stream=True, max_tokens=100)
    assert streamed.text == server.say(path, max_tokens=100).text == expected
    assert streamed.texts[-2].endswith(expected[-1])


@EVERYWHERE
def test_a_replacement_character_of_the_models_own_is_delivered(
    open_scripted: OpenScripted, path: str, stream: bool
) -> None:
    """DET-04: alone, in a row, as one token, and beside bytes that are incomplete."""
    tokens = [*in_bytes("a\ufffd\ufffdb"), "\ufffd", *in_bytes(b"\xf0\x9f\xef\xbf\xbdc")]
    said = LocalServer(open_scripted(tokens)).say(path, stream=stream, max_tokens=100)
    assert said.text == "a\ufffd\ufffdb\ufffd\ufffd\ufffdc"


def test_a_replacement_character_of_the_models_own_comes_with_its_last_byte(open_scripted: OpenScripted) -> None:
    """DET-04: told from incomplete bytes by its bytes, not by looking for it in the text."""
    params = SamplingParams(temperature=0, max_tokens=9)
    texts = [delta.text for delta in open_scripted(in_bytes("\ufffdab")).stream("x", params)]
    assert texts == ["", "", "\ufffd", "a", "b", ""]
