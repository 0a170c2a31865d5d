"""Tiny tokenizers whose ids can be written by hand."""

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pageport.engine.messages import EngineInfo
from pageport.models.resolve import resolve_model
from pageport.text.token_bytes import byte_alphabet
from pageport.text.tokenizer import Tokenizer, load_tokenizer


def build_byte_level(merges: tuple[tuple[str, str], ...] = ()) -> tokenizers.Tokenizer:
    """Id b is byte b; then the merged pieces."""
    vocab = {character: byte for byte, character in byte_alphabet().items()}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def build_sentencepiece(has_prefix: bool = True) -> tokenizers.Tokenizer:
    """Ids 0 to 2 are <unk> <s> </s>; id 3 + b is byte b; then the pieces."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *"helowrd",
        "he",
        "\u2581he",
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("h", "e"), ("\u2581", "he")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    to_mark = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), to_mark]) if has_prefix else to_mark
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """256 bytes, "he" (256), "z?" (257) and the special tokens <eos> (258) and <bos> (259)."""
    backend = build_byte_level((("h", "e"), ("z", "?")))
    backend.add_special_tokens(["<eos>", "<bos>"])
    return Tokenizer(backend, special_tokens={"eos_token": "<eos>", "bos_token": "<bos>"})


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(
        build_sentencepiece(), special_tokens={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    )


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2", None))


@pytest.fixture
def info() -> EngineInfo:
    return EngineInfo(
        model_name="tiny",
        architecture="LlamaForCausalLM",
        vocab_size=264,
        max_model_len=2048,
        max_request_tokens=1600,
        max_num_seqs=8,
        block_size=16,
        num_blocks=(100,),
        eos_token_ids=frozenset({258}),
        dtype="float32",
        backend="cpu",
    )
