"""Tokenizers from GGUF metadata, compared with transformers' and with the tokenizers of the models themselves."""

import logging
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.resolve import resolve_model
from pageport.text.gguf_tokenizer import build_gguf_tokenizer
from pageport.text.token_bytes import byte_alphabet
from pageport.text.tokenizer import Tokenizer, load_tokenizer

from .torture import LINES

# As the tokenizer.json files of LLaMA 3 and Qwen 2 have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def pieces_of(tag: str) -> pre_tokenizers.PreTokenizer:
    """Build the pre-tokenizer that models of this tag have in tokenizer.json."""
    if tag in ("llama-bpe", "llama3"):
        steps = [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        return pre_tokenizers.Sequence(steps)
    if tag == "qwen2":
        steps = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        return pre_tokenizers.Sequence(steps)
    if tag in ("smollm", "starcoder"):
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)])
    return pre_tokenizers.ByteLevel(False)


def train(tag: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=tag in ("llama-bpe", "llama3")))
    backend.normalizer = normalizers.NFC() if tag == "qwen2" else None
    backend.pre_tokenizer = pieces_of(tag)
    backend.decoder = decoders.ByteLevel()
    alphabet = list(byte_alphabet().values())
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    backend.train_from_iterator(LINES * 3, trainer)
    return backend


def metadata_of(backend: tokenizers.Tokenizer, **more: Any) -> dict[str, Any]:
    import json

    model = json.loads(backend.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token == "<|end|>" else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|end|>"),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


@pytest.mark.parametrize("tag", ["smollm", "starcoder", "llama-bpe", "llama3", "qwen2", "gpt-2", "gpt2"])
def test_ids_equal_those_of_a_model_that_splits_as_the_tag_says(tag: str) -> None:
    """GGU-03."""
    theirs = train(tag)
    ours = build_gguf_tokenizer(metadata_of(theirs, pre=tag), "model.gguf")
    for line in LINES:
        assert ours.encode(line, add_special_tokens=False) == theirs.encode(line).ids, repr(line)


def test_an_unknown_tag_is_an_error_that_names_it() -> None:
    """GGU-03."""
    with pytest.raises(UnsupportedModel, match=r"splits text as 'unknown-x' .*known: .*smollm"):
        build_gguf_tokenizer(metadata_of(train("gpt-2"), pre="unknown-x"), "model.gguf")


def test_a_missing_tag_is_a_loud_warning_and_splits_as_old_files_meant_it(caplog: pytest.LogCaptureFixture) -> None:
    """GGU-03."""
    metadata = metadata_of(train("gpt-2"))
    with caplog.at_level(logging.WARNING):
        unnamed = build_gguf_tokenizer(metadata, "model.gguf")
    assert "model.gguf does not say how its tokenizer splits text" in caplog.text
    named = build_gguf_tokenizer(metadata | {"tokenizer.ggml.pre": "default"}, "model.gguf")
    assert [unnamed.encode(line) for line in LINES] == [named.encode(line) for line in LINES]


def test_an_unknown_kind_and_a_missing_vocabulary_are_errors() -> None:
    with pytest.raises(UnsupportedModel, match=r"kind 'bert' .*known: gpt2, llama"):
        build_gguf_tokenizer({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}, "model.gguf")
    with pytest.raises(CorruptWeights, match=r"holds no vocabulary"):
        build_gguf_tokenizer({"tokenizer.ggml.model": "gpt2"}, "model.gguf")


@pytest.mark.parametrize(
    ("tag", "flags", "expected"),
    [
        ("gpt-2", {}, (False, False)),
        ("llama-bpe", {}, (True, False)),
        ("llama-bpe", {"add_bos_token": False}, (False, False)),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
    ],
)
def test_bos_and_eos_are_added_as_the_file_says(tag: str, flags: dict[str, bool], expected: tuple[bool, bool]) -> None:
    metadata = metadata_of(train("gpt-2"), pre=tag, **flags)
    ours = build_gguf_tokenizer(metadata, "model.gguf")
    ids, text = ours.encode("x"), ours.encode("x", add_special_tokens=False)
    mark = [metadata["tokenizer.ggml.eos_token_id"]]
    assert ids == mark * expected[0] + text + mark * expected[1]


def test_every_token_that_ends_a_turn_ends_a_generation() -> None:
    """STP-06."""
    metadata = metadata_of(train("gpt-2"), pre="gpt-2", eot_token_id=5, eom_token_id=6)
    metadata["tokenizer.ggml.tokens"][7], metadata["tokenizer.ggml.token_type"][7] = "<|im_end|>", 3
    metadata["tokenizer.ggml.merges"] = []
    assert build_gguf_tokenizer(metadata, "x").eos_token_ids == {0, 5, 6, 7}


def sentencepiece_metadata(architecture: str = "llama", **more: Any) -> dict[str, Any]:
    """Pieces with scores, as converters write them for SentencePiece models."""
    pieces = [
        "\u2581",
        *"abcdehlorw",
        "he",
        "ll",
        "llo",
        "hello",
        "\u2581he",
        "\u2581hello",
        "wor",
        "or",
        "ld",
        "\u2581wor",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "\n", "  ", "<turn>"]
    count = len(tokens)
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4, 4, 3]
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [float(-i) for i in range(count)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma3"])
def test_sentencepiece_ids_equal_transformers_conversion(architecture: str) -> None:
    """TOK-02."""
    from transformers.integrations.gguf import convert_gguf_tokenizer

    metadata = sentencepiece_metadata(architecture)
    fields = {"tokens": "tokens", "scores": "scores", "token_type": "token_type", "model": "tokenizer_type"}
    theirs, _ = convert_gguf_tokenizer(
        architecture, {new: metadata[f"tokenizer.ggml.{old}"] for old, new in fields.items()}
    )
    ours = build_gguf_tokenizer(metadata, "model.gguf")
    for text in (*LINES, "hello world", " hello", "<turn>hello<turn> hello", "hello\n  world   he"):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("architecture", "more", "text"),
    [
        ("llama", {}, "\u2581hello"),
        ("llama", {"add_space_prefix": False}, "hello"),
        ("gemma3", {}, "hello"),
    ],
)
def test_a_space_is_put_before_the_text_only_where_the_model_has_it(
    architecture: str, more: dict[str, Any], text: str
) -> None:
    """TOK-02: a part of a chat is not given a space of its own after a special token either."""
    ours = build_gguf_tokenizer(sentencepiece_metadata(architecture, **more), "model.gguf")
    assert ours.encode("hello", add_special_tokens=False) == [ours.token_to_id(text)]
    turn, word = ours.token_to_id("<turn>"), ours.token_to_id("hello")
    assert ours.encode("<turn>hello", add_special_tokens=False) == [turn, word]
    assert ours.decode([1, *ours.encode("hello", False)]) == "hello"


def test_a_sentencepiece_text_survives_the_round_trip() -> None:
    """TOK-02."""
    ours = build_gguf_tokenizer(sentencepiece_metadata("gemma3"), "model.gguf")
    for line in LINES:
        assert ours.decode(ours.encode(line, False), False) == line


def test_sentencepiece_adds_bos_unless_told_not_to() -> None:
    assert build_gguf_tokenizer(sentencepiece_metadata(), "x").encode("he")[0] == 1
    assert build_gguf_tokenizer(sentencepiece_metadata(add_bos_token=False), "x").encode("he")[0] != 1


def test_named_chat_templates_come_by_name() -> None:
    metadata = sentencepiece_metadata() | {
        "tokenizer.chat_template": "a",
        "tokenizer.chat_templates": ["tool_use", "lost"],
        "tokenizer.chat_template.tool_use": "b",
    }
    assert build_gguf_tokenizer(metadata, "x").chat_template == {"default": "a", "tool_use": "b"}
    del metadata["tokenizer.chat_templates"]
    assert build_gguf_tokenizer(metadata, "x").chat_template == "a"


def test_another_kind_of_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CorruptWeights, match=r"is not a GGUF file: it begins with b'PK"):
        load_tokenizer(tmp_path / "a.gguf")


@pytest.mark.smollm2
def test_smollm2_ids_equal_those_of_its_own_tokenizer(smollm2: Tokenizer) -> None:
    """GGU-03.

    transformers builds this file's tokenizer without the tag, so numerals are not split off there; with the
    pre-tokenizer of the model's tokenizer.json it is the reference.
    """
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, fields, _ = get_gguf_tokenizer(str(resolve_model("smollm2", None)))
    theirs, _ = convert_gguf_tokenizer(architecture, fields)
    for line in LINES:
        if not any(character.isnumeric() for character in line):
            assert smollm2.encode(line) == theirs.encode(line).ids, repr(line)
    theirs.pre_tokenizer = pieces_of("smollm")
    for line in LINES:
        ids = smollm2.encode(line)
        assert ids == theirs.encode(line).ids, repr(line)
        assert smollm2.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False) == line


@pytest.mark.smollm2
def test_smollm2_special_tokens_and_template_come_from_its_file(smollm2: Tokenizer) -> None:
    assert smollm2.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    assert (smollm2.vocab_size, smollm2.eos_token_ids, smollm2.bos_token) == (49152, {2}, "<|im_start|>")
    assert "<|im_start|>" in str(smollm2.chat_template)
