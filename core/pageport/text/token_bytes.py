"""``TokenBytes``: the bytes of text that each token stands for."""

import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

# Bytes that byte-level BPE writes as themselves: printable and no space; the others get code points from 256 on.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
WORD_START = "\u2581"  # SentencePiece's mark for a space


def byte_alphabet() -> dict[int, str]:
    """Return the character that byte-level BPE (GPT-2) writes for each byte."""
    rest = [byte for byte in range(256) if byte not in _PRINTABLE]
    return {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


class TokenBytes:
    """Bytes by token id, looked up on first use.

    ``is_exact``: text is these bytes joined, decoded as UTF-8. True for byte-level BPE and for SentencePiece with or
    without byte fallback; other decoders (WordPiece, none at all) put spaces between tokens, and their bytes are
    only good for showing one token. ``strips_first_space``: a space that begins the whole text is a mark of the
    tokenizer and is dropped.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._known: dict[int, bytes] = {}
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self._from_alphabet: dict[str, int] | None = None
        if kinds == ["ByteLevel"]:
            self._from_alphabet = {character: byte for byte, character in byte_alphabet().items()}
            # An added token is its content, whatever its characters would mean in the byte alphabet.
            added = backend.get_added_tokens_decoder()
            self._known = {token_id: token.content.encode() for token_id, token in added.items()}
        self._has_byte_tokens = "ByteFallback" in kinds
        self.strips_first_space = bool(steps) and steps[-1] == {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        self.is_exact = self._from_alphabet is not None or _is_sentencepiece(steps, self.strips_first_space)

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._look_up(token_id)
        return known

    def _look_up(self, token_id: int) -> bytes:
        # An id past the vocabulary (a padded output matrix) has no text.
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._from_alphabet is not None:
            if all(character in self._from_alphabet for character in token):
                return bytes(self._from_alphabet[character] for character in token)
            return token.encode()
        if self._has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(WORD_START, " ").encode()


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[Mapping[str, Any]]:
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _is_sentencepiece(steps: list[Mapping[str, Any]], strips: bool) -> bool:
    body = steps[:-1] if strips else steps
    replace = {"type": "Replace", "pattern": {"String": WORD_START}, "content": " "}
    return body[:1] == [replace] and [step["type"] for step in body[1:]] in (["ByteFallback", "Fuse"], ["Fuse"])
