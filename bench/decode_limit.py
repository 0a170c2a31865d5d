"""What memory bandwidth allows a single stream: every token reads all weights once, and its own keys and values."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DecodeLimit:
    """The bytes of one token, and the rate at which memory brings them."""

    bytes_per_token: float
    tokens_per_second: float


def decode_limit(model: Path, read_gb_per_s: float, *, kv_bytes: int, context: float = 192) -> DecodeLimit:
    """Return the limit for a GGUF file at a context; W1's is 192 tokens on average.

    The embedding matrix counts where it is also the output head, which is read whole; a token's own row is nothing.
    """
    from gguf import GGUFReader

    reader = GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()

    def number(name: str) -> int:
        return int(reader.fields[f"{architecture}.{name}"].contents())

    names = {tensor.name for tensor in reader.tensors}
    is_tied = "output.weight" not in names
    weights = sum(t.n_bytes for t in reader.tensors if is_tied or t.name != "token_embd.weight")
    head_size = number("embedding_length") // number("attention.head_count")
    per_position = 2 * number("block_count") * number("attention.head_count_kv") * head_size * kv_bytes
    total = float(weights + per_position * context)
    return DecodeLimit(total, read_gb_per_s * 1e9 / total)
