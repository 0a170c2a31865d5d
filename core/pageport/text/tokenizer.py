"""``Tokenizer``: text to token ids and back."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers

from pageport.errors import ModelNotFound
from pageport.text.token_bytes import TokenBytes

ChatTemplateSource = str | Mapping[str, str]

# In characters: about a millisecond of work.
LONG_TEXT = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """A ``tokenizers.Tokenizer`` with the special tokens and the chat template of a model.

    Text from users is encoded as transformers does by default: the spelling of a special token is that token,
    wherever it stands. Text is never truncated or padded.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: ChatTemplateSource | None = None,
    ) -> None:
        """Take over ``backend``.

        Args:
            backend: is changed: truncation and padding are switched off.
            special_tokens: ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``, … and their texts.
            eos_token_ids: further tokens that end a generation, besides ``eos_token``.
            chat_template: Jinja source, or several by name.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.all_special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        # One more than the largest id.
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in added), 0)
        own_eos = self.eos_token_id
        self.eos_token_ids = frozenset(eos_token_ids) | (frozenset() if own_eos is None else {own_eos})
        self._bytes = TokenBytes(backend)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``; lone surrogates, which are no text, become U+FFFD."""
        if _SURROGATE.search(text):
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if len(text) > LONG_TEXT:
            # This call lets other threads run meanwhile; for short texts its overhead is larger than what it saves.
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self, token_ids: Iterable[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Return the text of ``token_ids``; bytes that are no UTF-8 become one U+FFFD for each maximal subpart.

        ``spaces_between_special_tokens`` matters only for decoders that put spaces between tokens: False joins
        neighbouring special tokens without one.
        """
        shown = [i for i in token_ids if not (skip_special_tokens and i in self.all_special_ids)]
        if self._bytes.is_exact:
            data = b"".join([self._bytes[i] for i in shown])
            return (data.removeprefix(b" ") if self.strips_first_space else data).decode("utf-8", "replace")
        if spaces_between_special_tokens:
            return self.backend.decode(shown, skip_special_tokens=False)
        return " ".join(self._decode_runs(shown))

    def _decode_runs(self, token_ids: list[int]) -> list[str]:
        runs: list[list[int]] = []
        for token_id in token_ids:
            if runs and (runs[-1][-1] in self.all_special_ids) == (token_id in self.all_special_ids):
                runs[-1].append(token_id)
            else:
                runs.append([token_id])
        return [
            "".join(self.token_string(i) for i in run)
            if run[0] in self.all_special_ids
            else self.backend.decode(run, skip_special_tokens=False)
            for run in runs
        ]

    def token_bytes(self, token_id: int) -> bytes:
        """Return what one token adds to the text: a part of a character for some; empty for unknown ids."""
        return self._bytes[token_id]

    def token_string(self, token_id: int) -> str:
        """Return one token's text, special tokens included, with U+FFFD for a part of a character."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token spelled as in the vocabulary file."""
        return self.backend.token_to_id(token)

    @property
    def is_bytewise(self) -> bool:
        """Whether the text is the tokens' bytes, joined: byte-level BPE and SentencePiece."""
        return self._bytes.is_exact

    @property
    def strips_first_space(self) -> bool:
        """Whether a space that begins the whole text is dropped."""
        return self._bytes.strips_first_space

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._special_id("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._special_id("eos_token")

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a folder, a ``tokenizer.json`` or a ``.gguf`` file.

    Raises:
        ModelNotFound: nothing there to load.
        UnsupportedModel: a kind of tokenizer we cannot read; says how to convert it.
        CorruptWeights: a damaged file.
    """
    if not path.exists():
        raise ModelNotFound(f"There is no tokenizer at {path}. Give a folder, a tokenizer.json or a .gguf file.")
    if path.suffix == ".gguf":
        from pageport.text.gguf_tokenizer import load_gguf_tokenizer

        return load_gguf_tokenizer(path)
    from pageport.text.tokenizer_files import load_tokenizer_files

    return load_tokenizer_files(path)
