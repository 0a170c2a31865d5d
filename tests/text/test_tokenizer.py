"""``Tokenizer`` on byte-level and SentencePiece vocabularies."""

import random
import subprocess
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from pageport.text.tokenizer import Tokenizer


def test_bytes_of_a_byte_level_token_are_the_bytes_of_its_text(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(0xE2) == b"\xe2"
    assert byte_level.token_bytes(256) == b"he"
    assert byte_level.token_bytes(258) == b"<eos>"


def test_bytes_of_a_sentencepiece_byte_token_are_that_byte(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.token_bytes(3 + 0xE2) == b"\xe2"
    assert sentencepiece.token_bytes(sentencepiece.encode("he", False)[0]) == b" he"


def test_an_id_past_the_vocabulary_has_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(9999) == b""
    assert byte_level.decode([104, 9999, 105]) == "hi"


def test_token_string_shows_a_part_of_a_character_as_replacement(byte_level: Tokenizer) -> None:
    assert byte_level.token_string(0xE2) == "\ufffd"


def test_decode_equals_the_library_on_random_bytes(byte_level: Tokenizer) -> None:
    generator = random.Random(0)
    for _ in range(500):
        ids = [generator.choice((0xF0, 0x9F, 0x94, 0xA5, 0xC4, 0xED, 0xA0, 0xEF, 0xBF, 0xBD, 65, 32)) for _ in range(6)]
        assert byte_level.decode(ids) == byte_level.backend.decode(ids)


@pytest.mark.parametrize("text", ["hello world", "he \u65e5\u672c \U0001f525", "  two", ""])
def test_sentencepiece_decode_equals_the_library(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode(text, False)
    assert sentencepiece.decode(ids) == sentencepiece.backend.decode(ids)


def test_special_tokens_are_skipped_unless_asked_for(byte_level: Tokenizer) -> None:
    assert byte_level.decode([259, 104, 258]) == "h"
    assert byte_level.decode([259, 104, 258], skip_special_tokens=False) == "<bos>h<eos>"


def test_an_added_token_is_its_content_though_its_letters_mean_bytes() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(["\u00e9"])
    assert Tokenizer(backend).decode([0, 1]) == "a\u00e9"


def test_lone_surrogates_are_encoded_as_replacement_characters(byte_level: Tokenizer) -> None:
    """VAL-09."""
    assert byte_level.encode("a\ud83cb") == byte_level.encode("a\ufffdb")
    assert byte_level.encode("\udd25 ok") == byte_level.encode("\ufffd ok")
    assert byte_level.encode("\ud83d\udd25") == byte_level.encode("\U0001f525")


@pytest.mark.parametrize("text", ["\x00", "\uffff", "\ufeffx", "e" + "\u0301" * 2000])
def test_odd_but_legal_text_survives_the_round_trip(byte_level: Tokenizer, text: str) -> None:
    """VAL-09."""
    assert byte_level.decode(byte_level.encode(text)) == text


def test_truncation_and_padding_of_the_file_are_off() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer(backend).encode("aaaaa") == [0] * 5


def test_words_without_a_decoder_are_joined_with_spaces() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<x>"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode([0, 2, 2, 1], skip_special_tokens=False) == "a <x> <x> b"
    joined = tokenizer.decode([0, 2, 2, 1], skip_special_tokens=False, spaces_between_special_tokens=False)
    assert joined == "a <x><x> b"


def test_vocab_size_counts_added_tokens(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == 260
    assert byte_level.eos_token_ids == {258}
    assert byte_level.all_special_ids == {258, 259}


def test_text_needs_no_heavy_package_and_nothing_of_the_engine() -> None:
    code = (
        "import sys, pageport.text.chat, pageport.text.detokenizer, pageport.text.stop, pageport.text.gguf_tokenizer\n"
        "assert not {'torch', 'transformers', 'numpy', 'gguf', 'pageport.engine'} & set(sys.modules)\n"
        "import pageport.engine.input_processor, pageport.engine.output_processor\n"
        "assert not {'torch', 'transformers', 'gguf'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
