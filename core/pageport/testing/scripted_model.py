"""A model on disk that says what it is told: the real engine with a known text, one token a step."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from pageport.testing.tiny_model import EOS, byte_tokenizer

# Positions, and features of a hidden state: one for each position.
NUM_POSITIONS = 128
# A conversation is its messages' text and nothing else, so that chats have prompts as short as completions.
CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_scripted_model(
    folder: Path,
    tokens: Sequence[bytes | str],
    *,
    num_prompt_tokens: int = 1,
    special_tokens: Mapping[str, str] | None = None,
) -> Path:
    """Write a GPT-2 whose likeliest tokens, whatever the prompt says, are ``tokens`` and then <eos>.

    A hidden state is the one-hot vector of its position, and the head maps each position to one token, which then has
    nearly all of the probability. Returns ``folder``.

    Args:
        folder: made where it is missing.
        tokens: a byte is that byte's token, a string a token of its own. ``<eos>``, ``<bos>`` and ``<pad>`` are the
            special tokens.
        num_prompt_tokens: length of the prompt they follow; every byte of a prompt is a token.
        special_tokens: what tokenizer_config.json names besides ``<eos>`` as ``eos_token``.

    Raises:
        ValueError: more tokens than positions.
    """
    tokenizer = _tokenizer(tokens)
    spoken = [_token_id(tokenizer, token) for token in tokens]
    num_spoken = NUM_POSITIONS - num_prompt_tokens + 1
    if len(spoken) > num_spoken:
        raise ValueError(f"{len(spoken)} tokens are scripted; {num_spoken} follow a prompt of {num_prompt_tokens}.")
    ids = [EOS] * (num_prompt_tokens - 1) + spoken + [EOS] * (num_spoken - len(spoken))
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size = tokenizer.get_vocab_size()
    save_file(_tensors(ids, vocab_size), str(folder / "model.safetensors"))
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_embd": NUM_POSITIONS,
        "n_layer": 1,
        "n_head": 2,
        "n_inner": NUM_POSITIONS,
        "n_positions": NUM_POSITIONS,
        "tie_word_embeddings": False,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<eos>", **(special_tokens or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "chat_template": CHAT_TEMPLATE}))
    return folder


def _tokenizer(tokens: Sequence[bytes | str]) -> Tokenizer:
    tokenizer = byte_tokenizer()
    texts = dict.fromkeys(token for token in tokens if isinstance(token, str))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in texts if tokenizer.token_to_id(text) is None])
    return tokenizer


def _token_id(tokenizer: Tokenizer, token: bytes | str) -> int:
    if isinstance(token, str):
        return tokenizer.get_vocab()[token]
    (token_id,) = token
    return token_id


def _tensors(ids: Sequence[int], vocab_size: int) -> dict[str, Tensor]:
    size = NUM_POSITIONS
    head = torch.zeros(vocab_size, size)
    head[list(ids), torch.arange(size)] = 2.0
    tensors = {
        "transformer.wte.weight": torch.zeros(vocab_size, size),
        "transformer.wpe.weight": torch.eye(size),
        "lm_head.weight": head,
    }
    prefix = "transformer.h.0."
    for name, columns in (("attn.c_attn", 3 * size), ("attn.c_proj", size), ("mlp.c_fc", size), ("mlp.c_proj", size)):
        tensors |= {f"{prefix}{name}.weight": torch.zeros(size, columns), f"{prefix}{name}.bias": torch.zeros(columns)}
    for name in (f"{prefix}ln_1", f"{prefix}ln_2", "transformer.ln_f"):
        tensors |= {f"{name}.weight": torch.ones(size), f"{name}.bias": torch.zeros(size)}
    # What a norm makes of the zeros of a one-hot vector becomes zero again.
    tensors["transformer.ln_f.bias"] += (size - 1) ** -0.5
    return tensors
