"""``HashChain``: a digest for each full block of a sequence that stands for the block and all that precedes it."""

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256

_DOMAIN = b"pageport prefix 1"


class HashChain:
    """Digests of a sequence's leading full blocks, made once, when first asked for, per block size."""

    def __init__(self, cache_keys: Mapping[str, str]) -> None:
        self._root = root_digest(cache_keys)
        self._digests: dict[int, list[bytes]] = {}

    def digest(self, block_size: int, token_ids: Sequence[int], entry: int) -> bytes:
        """Return the digest of full block ``entry``; ``token_ids`` is the sequence from its first token on."""
        digests = self._digests.setdefault(block_size, [])
        while len(digests) <= entry:
            start = len(digests) * block_size
            parent = digests[-1] if digests else self._root
            digests.append(block_digest(parent, token_ids[start : start + block_size]))
        return digests[entry]

    def truncate(self, num_tokens: int) -> None:
        """Forget the digests of blocks that reach beyond ``num_tokens``."""
        for size, digests in self._digests.items():
            del digests[num_tokens // size :]

    def copy(self) -> "HashChain":
        """Return a chain that grows on its own."""
        chain = HashChain.__new__(HashChain)
        chain._root = self._root
        chain._digests = {size: digests.copy() for size, digests in self._digests.items()}
        return chain


def root_digest(cache_keys: Mapping[str, str]) -> bytes:
    """Hash the tagged keys (adapter, salt, image digest, …) that every block of a sequence depends on.

    Tag and value carry their lengths, so neither can imitate the other and an empty value differs from an absent key.
    """
    state = sha256(_DOMAIN)
    for tag in sorted(cache_keys):
        for text in (tag, cache_keys[tag]):
            # A lone surrogate, which JSON can carry, must not stop the engine.
            data = text.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little"))
            state.update(data)
    return state.digest()


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash one full block of tokens onto the digest of what precedes it."""
    return sha256(parent + array("q", token_ids).tobytes()).digest()
