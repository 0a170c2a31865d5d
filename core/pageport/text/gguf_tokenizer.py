"""Build a tokenizer from the metadata of a GGUF file, which has no tokenizer.json."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.gguf_metadata import read_gguf_metadata
from pageport.models.gguf_tokens import CONTROL, END_KEYS, TURN_ENDS, USER_DEFINED
from pageport.text.pre_tokenizers import Splitting, known_tags, splitting
from pageport.text.token_bytes import WORD_START
from pageport.text.tokenizer import ChatTemplateSource, Tokenizer
from pageport.text.tokenizer_files import add_bos_and_eos, split_merges

logger = logging.getLogger(__name__)


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer that a GGUF file describes.

    Raises:
        UnsupportedModel: a kind of vocabulary or a pre-tokenizer tag we do not know; names it.
        CorruptWeights: the file is damaged or has no vocabulary.
    """
    return build_gguf_tokenizer(read_gguf_metadata(path), str(path))


def build_gguf_tokenizer(metadata: Mapping[str, Any], name: str) -> Tokenizer:
    """Build the tokenizer of metadata that was read; ``name`` is for messages."""
    kind = metadata.get("tokenizer.ggml.model")
    if not metadata.get("tokenizer.ggml.tokens"):
        raise CorruptWeights(f"{name} holds no vocabulary (tokenizer.ggml.tokens). Give a tokenizer beside the model.")
    if kind == "gpt2":
        rules = _splitting(metadata, name)
        backend = _byte_level(metadata, rules)
        adds_bos = rules.adds_bos
    elif kind == "llama":
        backend = _sentencepiece(metadata, name)
        adds_bos = True
    else:
        raise UnsupportedModel(
            f"{name} has a tokenizer of kind {kind!r} (tokenizer.ggml.model); known: gpt2, llama. "
            "Give the model's tokenizer folder beside it."
        )
    _add_special_tokens(backend, metadata)
    special_tokens = _special_tokens(metadata)
    bos = special_tokens.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = special_tokens.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    add_bos_and_eos(backend, bos, eos)
    return Tokenizer(
        backend,
        special_tokens=special_tokens,
        eos_token_ids=_eos_token_ids(metadata),
        chat_template=_chat_template(metadata),
    )


def _splitting(metadata: Mapping[str, Any], name: str) -> Splitting:
    tag = metadata.get("tokenizer.ggml.pre")
    if tag is None:
        logger.warning(
            "%s does not say how its tokenizer splits text (tokenizer.ggml.pre): splitting as files of that age "
            "mean it, which may not be how the model was trained. Convert the model again, or give its tokenizer.",
            name,
        )
        tag = "default"
    rules = splitting(tag)
    if rules is None:
        raise UnsupportedModel(
            f"{name} splits text as {tag!r} (tokenizer.ggml.pre), which is unknown here; known: "
            f"{', '.join(known_tags())}. Give the model's tokenizer folder beside it."
        )
    return rules


def _byte_level(metadata: Mapping[str, Any], rules: Splitting) -> tokenizers.Tokenizer:
    merges = _listed_merges(metadata)
    vocab = _vocabulary(metadata["tokenizer.ggml.tokens"])
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rules.ignores_merges))
    if rules.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], name: str) -> tokenizers.Tokenizer:
    """Build what transformers makes of such a file.

    Gemma has no space before the text and takes merges in the order of the vocabulary, since its scores do not
    follow it. Phi-3 puts the space before every text; LLaMA only where none is written.
    """
    architecture = str(metadata.get("general.architecture", ""))
    is_gemma = architecture.startswith("gemma")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores = metadata.get("tokenizer.ggml.scores")
    if is_gemma:
        # Runs of spaces are stored as spaces, other pieces with the mark.
        tokens = [WORD_START * len(token) if token and not token.strip(" ") else token for token in tokens]
        scores = range(0, -len(tokens), -1)
    if scores is None:
        raise CorruptWeights(f"{name} has no scores for its pieces (tokenizer.ggml.scores). Convert the model again.")
    vocab = _vocabulary(tokens)
    merges = (
        _listed_merges(metadata)
        if "tokenizer.ggml.merges" in metadata
        else _merges(vocab, dict(zip(tokens, scores, strict=False)))
    )
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = not is_gemma and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    to_mark = normalizers.Replace(" ", WORD_START)
    if has_prefix and architecture == "phi3":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), to_mark])
    elif has_prefix:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        backend.normalizer = to_mark
    steps: list[decoders.Decoder] = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return backend


def _vocabulary(tokens: Iterable[str]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for token_id, token in enumerate(tokens):
        vocab.setdefault(token, token_id)
    return vocab


def _listed_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    return split_merges(metadata.get("tokenizer.ggml.merges", ()))


def _merges(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Recover merges from scores: every cut of a piece into two pieces, the best piece first.

    Cuts of one piece stay in the order of their parts' ids, as transformers has them.
    """
    merges: list[tuple[str, str]] = []
    for token in sorted(vocab, key=lambda piece: scores[piece], reverse=True):
        cuts: list[tuple[str, str]] = []
        for at in range(1, len(token)):
            left = token[:at]
            # Looking up the right part only then halves the seconds this takes for a large vocabulary.
            if left in vocab and (right := token[at:]) in vocab:
                cuts.append((left, right))
        merges += sorted(cuts, key=lambda cut: (vocab[cut[0]], vocab[cut[1]])) if len(cuts) > 1 else cuts
    return merges


def _add_special_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Have control tokens matched whole and skipped in text, user-defined ones matched whole."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type", [])
    by_type: dict[int, list[str]] = {CONTROL: [], USER_DEFINED: []}
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in by_type and token:
            by_type[token_type].append(token)
    known = backend.get_vocab(with_added_tokens=False)
    # A run of spaces of Gemma's is in the vocabulary under its marked spelling.
    user_defined = [token if token in known else token.replace(" ", WORD_START) for token in by_type[USER_DEFINED]]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in by_type[CONTROL]])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_defined])


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    tokens = metadata["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and i < len(tokens)}


def _eos_token_ids(metadata: Mapping[str, Any]) -> set[int]:
    ids: set[int] = {metadata[key] for key in END_KEYS if metadata.get(key) is not None}
    types = metadata.get("tokenizer.ggml.token_type", [])
    for token_id, (token, token_type) in enumerate(zip(metadata["tokenizer.ggml.tokens"], types, strict=False)):
        if token in TURN_ENDS and token_type in (CONTROL, USER_DEFINED):
            ids.add(token_id)
    return ids


def _chat_template(metadata: Mapping[str, Any]) -> ChatTemplateSource | None:
    default = metadata.get("tokenizer.chat_template")
    named = {
        name: metadata.get(f"tokenizer.chat_template.{name}") for name in metadata.get("tokenizer.chat_templates", [])
    }
    sources = {name: source for name, source in named.items() if source}
    if not sources:
        return default
    return sources | ({"default": default} if default else {})
