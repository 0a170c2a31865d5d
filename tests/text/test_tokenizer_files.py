"""Loading a tokenizer from a Hugging Face folder, compared with transformers where it loads the same files."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, processors

from pageport.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from pageport.text.tokenizer import load_tokenizer

from .conftest import build_byte_level
from .torture import LINES

MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("\u0120", "w"))


def write_folder(folder: Path, settings: dict[str, Any], **files: Any) -> Path:
    backend = build_byte_level(MERGES)
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


NAMED = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>"},
    "tokenizer_class": "PreTrainedTokenizerFast",
}


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
    ],
)
@pytest.mark.parametrize("has_template", [True, False])
def test_bos_and_eos_flags_do_what_transformers_does(
    tmp_path: Path, flags: dict[str, bool], has_template: bool
) -> None:
    """TPL-06: a tokenizer.json says itself what it adds, and the flags beside it do not count."""
    from transformers import PreTrainedTokenizerFast

    folder = write_folder(tmp_path, NAMED | flags)
    if has_template:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 260)])
        backend.save(str(folder / "tokenizer.json"))
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = load_tokenizer(folder)
    for text in ("hello world", "a<s>b</s>", ""):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.special_tokens == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id, ours.special_tokens.get("pad_token")) == (260, 261, None)


def test_tokens_that_only_the_config_lists_are_added(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    added = {"263": {"content": "<|im_end|>", "special": True}, "264": {"content": "<think>", "special": False}}
    folder = write_folder(tmp_path, {**NAMED, "added_tokens_decoder": added, "extra_special_tokens": ["<extra>"]})
    ours, theirs = load_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    text = "a<|im_end|><think>b<extra>"
    assert ours.encode(text) == theirs.encode(text) == [97, 263, 264, 98, 265]
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True) == "a<think>b"


def test_special_tokens_map_counts_where_the_config_lists_none(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, {}, special_tokens_map={"eos_token": "</s>"}))
    assert tokenizer.eos_token == "</s>"


@pytest.mark.parametrize(
    ("model_ids", "generation_ids", "expected"),
    [
        ([261, 262], [262, 263], {261, 262, 263}),
        (262, None, {261, 262}),
        (None, 262, {261, 262}),
        (None, None, {261}),
    ],
)
def test_every_end_token_that_a_file_names_counts(
    tmp_path: Path, model_ids: Any, generation_ids: Any, expected: set[int]
) -> None:
    """STP-06."""
    folder = write_folder(
        tmp_path, NAMED, config={"eos_token_id": model_ids}, generation_config={"eos_token_id": generation_ids}
    )
    assert load_tokenizer(folder).eos_token_ids == expected


def test_ids_of_the_model_config_name_tokens_that_the_tokenizer_files_do_not(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path, {}, config={"bos_token_id": 260, "eos_token_id": 261}))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, NAMED)
    for file in folder.glob("*.json"):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbf{{ 1 }}\r\n{{ 2 }}")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("hell") == [258]
    assert tokenizer.chat_template == "{{ 1 }}\n{{ 2 }}"


def test_a_tokenizer_json_can_be_named_itself(tmp_path: Path) -> None:
    assert load_tokenizer(write_folder(tmp_path, NAMED) / "tokenizer.json").eos_token_id == 261


def test_chat_template_files_win_over_the_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {**NAMED, "chat_template": "old"})
    assert load_tokenizer(folder).chat_template == "old"
    (folder / "chat_template.json").write_text('{"chat_template": "newer"}')
    assert load_tokenizer(folder).chat_template == "newer"
    (folder / "chat_template.jinja").write_text("newest")
    assert load_tokenizer(folder).chat_template == "newest"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(folder).chat_template == {"default": "newest", "tool_use": "tools"}


def test_named_templates_of_the_config_become_a_mapping(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    tokenizer = load_tokenizer(write_folder(tmp_path, {**NAMED, "chat_template": templates}))
    assert tokenizer.chat_template == {"default": "a", "rag": "b"}


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_vocabulary_and_merges_alone_make_the_tokenizer_of_their_class(tmp_path: Path, kind: str) -> None:
    from transformers import AutoTokenizer

    vocab = build_byte_level(MERGES).get_vocab()
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = "#version: 0.2\r\n" + "".join(f"{left} {right}\r\n" for left, right in MERGES)
    (tmp_path / "merges.txt").write_bytes(merges.encode())
    config = {"tokenizer_class": kind, "eos_token": "<|endoftext|>", "unk_token": None, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": None}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for line in LINES:
        assert ours.encode(line) == theirs.encode(line)


def test_flags_count_where_there_is_no_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(build_byte_level(MERGES).get_vocab()))
    (tmp_path / "merges.txt").write_text("h e\n")
    config = {"bos_token": "<s>", "add_bos_token": True, "tokenizer_class": "GPT2Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path).encode("he") == [260, 256]


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt"])
def test_a_vocabulary_we_cannot_read_says_how_to_convert_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=rf"has {name} but no tokenizer.json. Convert it once"):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_and_no_folder_at_all_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path)
    for name in ("nowhere", "nowhere.gguf"):
        with pytest.raises(ModelNotFound, match="There is no tokenizer at"):
            load_tokenizer(tmp_path / name)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b'{"model": 1}'])
def test_a_damaged_tokenizer_json_names_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CorruptWeights, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_split_special_tokens_makes_their_spelling_ordinary_text(tmp_path: Path) -> None:
    """TPL-09: the policy is transformers', and so is the switch."""
    assert load_tokenizer(write_folder(tmp_path, NAMED)).encode("</s>") == [261]
    folder = write_folder(tmp_path, {**NAMED, "split_special_tokens": True})
    assert load_tokenizer(folder).encode("</s>") == list(b"</s>")


def test_a_loaded_tokenizer_is_not_changed_by_a_second_tokenizer(tmp_path: Path) -> None:
    first = load_tokenizer(write_folder(tmp_path, NAMED))
    second = load_tokenizer(write_folder(tmp_path, {**NAMED, "extra_special_tokens": ["a"]}))
    assert (first.encode("a"), second.encode("a")) == ([97], [97])
    assert (first.decode([97]), second.decode([97])) == ("a", "")
    assert isinstance(first.backend.model, models.BPE)
