"""``IncrementalDetokenizer``: any chunking gives the whole text, and no part of a character."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from pageport.text.detokenizer import IncrementalDetokenizer
from pageport.text.tokenizer import Tokenizer

from .conftest import build_byte_level, build_sentencepiece

MIXED = "na\u00efve \U0001f525 \u017elu\u0165ou\u010dk\u00fd \u65e5\u672c \U0001f468\u200d\U0001f469\u200d\U0001f467"
_BYTE_LEVEL = Tokenizer(build_byte_level((("h", "e"), ("\u0120", "he"))))
_SENTENCEPIECE = Tokenizer(build_sentencepiece())


def pieces(tokenizer: Tokenizer, token_ids: list[int], prompt: tuple[int, ...] = (), **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, **options)
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


@pytest.mark.parametrize("tokenizer", [_BYTE_LEVEL, _SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_characters_of_several_tokens_come_whole(tokenizer: Tokenizer) -> None:
    """DET-01."""
    deltas = pieces(tokenizer, tokenizer.encode(MIXED, False))
    assert "".join(deltas) == MIXED
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_stream_that_ends_within_a_character_shows_it_once_as_replacement(byte_level: Tokenizer) -> None:
    """DET-02."""
    assert pieces(byte_level, [0x61, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]
    assert byte_level.decode([0x61, 0xF0, 0x9F]) == "a\ufffd"


@pytest.mark.parametrize("tokenizer", [_BYTE_LEVEL, _SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_invalid_bytes_do_not_hold_back_later_text(tokenizer: Tokenizer) -> None:
    """DET-02."""
    first = 0 if tokenizer is _BYTE_LEVEL else 3
    deltas = pieces(tokenizer, [first + byte for byte in (0xC4, 0xC4, 0x20, 0x61)])
    assert deltas == ["", "\ufffd", "\ufffd ", "a", ""]


def test_a_replacement_character_that_the_model_wrote_is_delivered_at_once(byte_level: Tokenizer) -> None:
    """DET-04."""
    assert pieces(byte_level, [0xEF, 0xBF, 0xBD, 0x61]) == ["", "", "\ufffd", "a", ""]


def test_output_completes_a_character_that_the_prompt_began(byte_level: Tokenizer) -> None:
    assert "".join(pieces(byte_level, [0x94, 0xA5], prompt=(0x61, 0xF0, 0x9F))) == "\U0001f525"


def test_the_prompts_incomplete_character_is_not_shown_again(byte_level: Tokenizer) -> None:
    assert "".join(pieces(byte_level, [0x61], prompt=(0xF0, 0x9F))) == "a"
    assert "".join(pieces(byte_level, [], prompt=(0xF0, 0x9F))) == ""


def test_the_space_of_a_first_word_is_kept_after_a_prompt_and_dropped_without(sentencepiece: Tokenizer) -> None:
    word = sentencepiece.encode("he", False)
    assert "".join(pieces(sentencepiece, word)) == "he"
    assert "".join(pieces(sentencepiece, word, prompt=tuple(word))) == " he"
    assert "".join(pieces(sentencepiece, word, prompt=(1,))) == "he"


def test_special_tokens_are_shown_only_when_asked(byte_level: Tokenizer) -> None:
    assert "".join(pieces(byte_level, [104, 258, 105])) == "hi"
    assert "".join(pieces(byte_level, [104, 258, 105], skip_special_tokens=False)) == "h<eos>i"


def test_a_skipped_special_token_does_not_break_a_character(byte_level: Tokenizer) -> None:
    assert "".join(pieces(byte_level, [0xC3, 258, 0xA9])) == "\u00e9"


def test_tokens_joined_with_spaces_stream_as_they_decode() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    backend.add_special_tokens(["<x>"])
    tokenizer = Tokenizer(backend)
    ids = [0, 3, 1, 3, 3, 3, 3, 3, 2]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == "a b c"
    assert "".join(pieces(tokenizer, [1], prompt=(0,))) == " b"


@given(
    tokens=st.lists(st.integers(0, 262)),
    sizes=st.lists(st.integers(1, 5), min_size=1),
    skip=st.booleans(),
    is_byte_level=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_any_chunking_equals_the_whole(tokens: list[int], sizes: list[int], skip: bool, is_byte_level: bool) -> None:
    """DET-01, DET-02, DET-04."""
    tokenizer = _BYTE_LEVEL if is_byte_level else _SENTENCEPIECE
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip)
    texts, start = [], 0
    while start < len(tokens):
        size = sizes[len(texts) % len(sizes)]
        texts.append(detokenizer.push(tokens[start : start + size]))
        start += size
    assert "".join(texts) + detokenizer.flush() == tokenizer.decode(tokens, skip)


@given(prompt=st.text(max_size=8), output=st.text(max_size=8))
@settings(max_examples=200, deadline=None)
def test_output_after_a_prompt_is_what_it_adds_to_the_prompts_text(prompt: str, output: str) -> None:
    for tokenizer in (_BYTE_LEVEL, _SENTENCEPIECE):
        before, after = tokenizer.encode(prompt, False), tokenizer.encode(output, False)
        added = "".join(pieces(tokenizer, after, tuple(before)))
        assert tokenizer.decode(before) + added == tokenizer.decode([*before, *after])
