"""Load a tokenizer from the files that Hugging Face repositories hold."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pageport.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from pageport.models.json_file import read_json_object
from pageport.text.pre_tokenizers import QWEN2_SPLIT
from pageport.text.tokenizer import ChatTemplateSource, Tokenizer, load_tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
_BYTE_LEVEL_CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast")
_CONVERT = (
    "Convert it once with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder), "
    "which writes tokenizer.json."
)


def load_tokenizer_files(path: Path) -> Tokenizer:
    """Load a ``tokenizer.json``, alone or with the files beside it that say more.

    Raises:
        ModelNotFound: no tokenizer in the folder.
        UnsupportedModel: the folder has only a kind of vocabulary we cannot read.
        CorruptWeights: a file is not what its name says.
    """
    folder = path if path.is_dir() else path.parent
    file = folder / "tokenizer.json" if path.is_dir() else path
    if path.is_dir() and not file.exists() and (gguf := sorted(folder.glob("*.gguf"))):
        return load_tokenizer(gguf[0])
    settings = _settings(folder)
    backend = _parse(file) if file.exists() else _from_vocabulary(folder, settings)
    model_config = _read_json(folder / "config.json")
    _add_missing_tokens(backend, settings)
    special_tokens = _special_tokens(backend, settings, model_config)
    _mark_special(backend, settings, special_tokens)
    if not file.exists():
        _set_post_processor(backend, settings, special_tokens)
    backend.encode_special_tokens = bool(settings.get("split_special_tokens"))
    generation_config = _read_json(folder / "generation_config.json")
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        eos_token_ids={*_ids(model_config.get("eos_token_id")), *_ids(generation_config.get("eos_token_id"))},
        chat_template=_chat_template(folder, settings),
    )


def _settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; special_tokens_map.json counts where it lists no added tokens, as it once did."""
    settings = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in settings:
        return settings
    return settings | _read_json(folder / "special_tokens_map.json")


def _read_text(file: Path) -> str:
    # utf-8-sig drops a byte order mark, which Windows editors write; text mode turns \r\n into \n.
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptWeights(f"{file} is not UTF-8 text ({error}). Fetch it again.") from error


def _read_json(file: Path) -> dict[str, Any]:
    return read_json_object(file) if file.exists() else {}


def _parse(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(_read_text(file))
    except CorruptWeights:
        raise
    except Exception as error:  # the library raises bare Exception
        raise CorruptWeights(f"{file} is no tokenizer ({error}). Fetch it again.") from error


def _from_vocabulary(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    vocab_file, merges_file = folder / "vocab.json", folder / "merges.txt"
    kind = settings.get("tokenizer_class") or "GPT2Tokenizer"
    if not (vocab_file.exists() and merges_file.exists()):
        if found := [name for name in ("tokenizer.model", "spiece.model", "vocab.txt") if (folder / name).exists()]:
            raise UnsupportedModel(f"{folder} has {found[0]} but no tokenizer.json. {_CONVERT}")
        raise ModelNotFound(f"{folder} has no tokenizer.json, nor vocab.json with merges.txt. Fetch the tokenizer too.")
    if kind not in (*_BYTE_LEVEL_CLASSES, *_QWEN2_CLASSES):
        raise UnsupportedModel(f"{folder} has vocab.json and merges.txt of a {kind}, but no tokenizer.json. {_CONVERT}")
    lines = _read_text(merges_file).splitlines()
    merges = split_merges(line for line in lines if line.strip() and not line.startswith("#version"))
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=_read_json(vocab_file), merges=merges))
    except Exception as error:  # the library raises bare Exception
        raise CorruptWeights(f"{vocab_file} and {merges_file} do not fit together ({error}).") from error
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=bool(settings.get("add_prefix_space")))
    if kind in _QWEN2_CLASSES:
        backend.normalizer = normalizers.NFC()
        byte_level.use_regex = False
        split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    return backend


def split_merges(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the two parts of each merge, which files write with a space between them."""
    return [(left, right) for left, _, right in (line.partition(" ") for line in lines)]


def _add_missing_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json lists; its flags win over tokenizer.json's."""
    known = backend.get_added_tokens_decoder()
    listed = settings.get("added_tokens_decoder") or {}
    for token_id, fields in sorted(listed.items(), key=lambda item: int(item[0])):
        token = _added_token(fields)
        if repr(known.get(int(token_id))) != repr(token):
            _add(backend, token)


def _special_tokens(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], model_config: Mapping[str, Any]
) -> dict[str, str]:
    """Name the special tokens.

    A repository as old as GPT-2's leaves them to transformers' classes; the model's config has their ids then.
    """
    names = {key for key in settings if key.endswith("_token") and not key.startswith("add_")} | {*_NAMED}
    special_tokens = {
        name: _content(settings[name]) for name in sorted(names) if isinstance(settings.get(name), str | dict)
    }
    for name in ("bos_token", "eos_token", "pad_token"):
        ids = _ids(model_config.get(f"{name}_id"))
        if name not in settings and ids and (token := backend.id_to_token(ids[0])) is not None:
            special_tokens[name] = token
    return special_tokens


def _mark_special(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Make every named and every extra special token one that is matched whole and skipped in text."""
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    extras = list(extra.values()) if isinstance(extra, Mapping) else list(extra)
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for value in [*special_tokens.values(), *extras]:
        token = known.get(_content(value)) or _added_token(value)
        if not token.special or token.content not in known:
            token.special = True
            _add(backend, token)


def _set_post_processor(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Obey ``add_bos_token`` and ``add_eos_token``, which tokenizer.json has in its own form and overrides."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return
    bos = special_tokens.get("bos_token") if settings.get("add_bos_token") else None
    eos = special_tokens.get("eos_token") if settings.get("add_eos_token") else None
    add_bos_and_eos(backend, bos, eos)


def add_bos_and_eos(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Put ``bos`` before and ``eos`` after every encoded text that asks for special tokens; None: nothing."""
    around = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=[*([bos] if bos is not None else []), "$A", *([eos] if eos is not None else [])], special_tokens=around
    )


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> ChatTemplateSource | None:
    """Find the chat template; files win over tokenizer_config.json, and several are named."""
    named = {file.stem: _read_text(file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        named["default"] = _read_text(folder / "chat_template.jinja")
    elif isinstance(source := _read_json(folder / "chat_template.json").get("chat_template"), str):
        named["default"] = source
    if not named:
        source = settings.get("chat_template")
        if isinstance(source, list):
            return {entry["name"]: entry["template"] for entry in source}
        return source if isinstance(source, str) else None
    return named["default"] if list(named) == ["default"] else named


def _added_token(fields: str | Mapping[str, Any]) -> AddedToken:
    if isinstance(fields, str):
        return AddedToken(fields, normalized=False, special=True)
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(fields["content"], **{flag: bool(fields[flag]) for flag in flags if flag in fields})


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _add(backend: tokenizers.Tokenizer, token: AddedToken) -> None:
    if token.special:
        backend.add_special_tokens([token])
    else:
        backend.add_tokens([token])


def _ids(value: Any) -> list[int]:
    if isinstance(value, bool) or value is None:
        return []
    return [value] if isinstance(value, int) else [int(i) for i in value]
