"""The space that SentencePiece puts before a text: where a conversation gets one, and that it comes off again."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers, pre_tokenizers

from pageport.text.chat import ChatTemplate
from pageport.text.detokenizer import IncrementalDetokenizer
from pageport.text.tokenizer import load_tokenizer

from .conftest import build_sentencepiece
from .torture import LINES

# The ways in which published tokenizer.json files say it: the first is that of models with "legacy": true.
SCHEMES = {
    "normalizer": None,
    "first": pre_tokenizers.Metaspace("\u2581", "first", False),
    "always": pre_tokenizers.Metaspace("\u2581", "always", False),
    "never": pre_tokenizers.Metaspace("\u2581", "never", False),
}
TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}\n{{ m.content }}</s>{% endfor %}<turn>assistant\n",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %} {{ bos_token }}{{ m.content }} {{ eos_token }}{% endfor %}",
    "{% for m in messages %}<turn> {{ m.content }}<turn>{{ m.content }}{% endfor %} ",
]
TALK = [
    {"role": "user", "content": "he wrote  hello"},
    {"role": "assistant", "content": " \u65e5\u672c he"},
    {"role": "user", "content": "hello"},
]


def write_folder(folder: Path, scheme: str) -> Path:
    backend = build_sentencepiece()
    backend.add_special_tokens(["<turn>"])
    if SCHEMES[scheme] is not None:
        backend.normalizer = normalizers.Sequence([])
        backend.pre_tokenizer = SCHEMES[scheme]
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": scheme == "normalizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.fixture(params=SCHEMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_folder(tmp_path, request.param)


@pytest.fixture
def theirs(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("template", TEMPLATES)
def test_conversations_have_the_ids_of_transformers(folder: Path, theirs: Any, template: str) -> None:
    """TOK-02: text after special tokens and text alone, at every length of the conversation."""
    ours = load_tokenizer(folder)
    for length in (1, 2, 3):
        expected = theirs.apply_chat_template(TALK[:length], chat_template=template, tokenize=True, return_dict=False)
        assert ChatTemplate(template, ours).encode(TALK[:length]) == expected


def test_text_has_the_ids_of_transformers_and_the_same_text_again(folder: Path, theirs: Any) -> None:
    """TOK-02: encoded whole, decoded whole and token by token."""
    ours = load_tokenizer(folder)
    for line in (*LINES, "he", " he", "  he", "<turn>he<turn> he", "he<turn>"):
        ids = ours.encode(line, add_special_tokens=False)
        assert ids == theirs.encode(line, add_special_tokens=False), repr(line)
        assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False), repr(line)
        detokenizer = IncrementalDetokenizer(ours, (), skip_special_tokens=False)
        assert "".join(map(detokenizer.push, ([i] for i in ids))) + detokenizer.flush() == ours.decode(ids, False)


@pytest.mark.parametrize("scheme", ["normalizer", "first", "always"])
def test_plain_text_survives_the_round_trip(tmp_path: Path, scheme: str) -> None:
    """TOK-02: the space that was put before it is the one that is taken off."""
    ours = load_tokenizer(write_folder(tmp_path, scheme))
    for text in ("he", "hello  \U0001f525", "\n he"):
        assert ours.decode(ours.encode(text, False)) == text
    # A pre-tokenizer adds none to a text that begins with a space, so that this one comes off.
    assert ours.decode(ours.encode(" he", False)) == (" he" if scheme == "normalizer" else "he")


def test_what_follows_a_special_token_has_no_space_of_its_own_unless_the_file_says_so(tmp_path: Path) -> None:
    """TOK-02: literal ids, so that both sides cannot be wrong alike."""
    split = {}
    for scheme in SCHEMES:
        ours = load_tokenizer(write_folder(tmp_path, scheme))
        names = {ours.token_to_id(token): token for token in ("<turn>", "he", "\u2581he", "\u2581")}
        split[scheme] = [names[i] for i in ours.encode("he<turn>he<turn> he", False)]
    assert split == {
        "normalizer": ["\u2581he", "<turn>", "\u2581he", "<turn>", "\u2581", "\u2581he"],
        "first": ["\u2581he", "<turn>", "he", "<turn>", "\u2581he"],
        "always": ["\u2581he", "<turn>", "\u2581he", "<turn>", "\u2581he"],
        "never": ["he", "<turn>", "he", "<turn>", "\u2581he"],
    }
