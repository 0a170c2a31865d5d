"""``Promises``: prompt blocks that a running sequence is going to compute."""

from collections import deque
from collections.abc import Iterable


class Promises:
    """Digest of a full block (see ``HashChain``) → the sequence that computes it.

    Who waits with a prompt that needs such a block does better to wait until it is in the prefix index. A promise ends
    when it is kept, or when its sequence is gone.
    """

    def __init__(self) -> None:
        self._sequence_of: dict[bytes, int] = {}
        self._made_by: dict[int, deque[tuple[int, bytes]]] = {}  # (tokens up to the block's end, digest)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sequence_of

    def __len__(self) -> int:
        return len(self._sequence_of)

    def make(self, sequence_id: int, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Note the blocks, in order, that ``sequence_id`` will compute, except those promised by another already."""
        made = deque((end, digest) for end, digest in blocks if digest not in self._sequence_of)
        if made:
            self._made_by[sequence_id] = made
            self._sequence_of.update((digest, sequence_id) for _, digest in made)

    def keep(self, sequence_id: int, num_tokens: int) -> None:
        """Drop what is computed when ``sequence_id`` has committed ``num_tokens``."""
        made = self._made_by.get(sequence_id)
        if made is None:
            return
        while made and made[0][0] <= num_tokens:
            del self._sequence_of[made.popleft()[1]]
        if not made:
            del self._made_by[sequence_id]

    def withdraw(self, sequence_id: int) -> None:
        """Drop all that ``sequence_id`` has promised and not computed."""
        for _, digest in self._made_by.pop(sequence_id, ()):
            del self._sequence_of[digest]

    def check(self, sequence_ids: Iterable[int]) -> None:
        """Prove that both directions agree and that only sequences that exist have promised anything."""
        assert self._made_by.keys() <= set(sequence_ids), "a sequence that is gone still promises blocks"
        made = {digest: maker for maker, blocks in self._made_by.items() for _, digest in blocks}
        assert made == self._sequence_of
