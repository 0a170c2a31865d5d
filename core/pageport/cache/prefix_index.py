"""``PrefixIndex``: which block holds the content that a digest stands for."""


class PrefixIndex:
    """Digest of a full block (see ``HashChain``) → the block that holds it, and back.

    One block a digest: who computes content that is already here keeps a block of their own outside the index.
    Replacing that block by the indexed one would change a block table under a step in flight to save memory
    for requests that arrive within the same moment only.
    """

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._digest_of

    def find(self, digest: bytes) -> int | None:
        """Return the block with this content, or None."""
        return self._block_of.get(digest)

    def add(self, digest: bytes, block_id: int) -> bool:
        """Enter a block unless its content is here already or the block is; say whether it was entered."""
        if digest in self._block_of or block_id in self._digest_of:
            return False
        self._block_of[digest] = block_id
        self._digest_of[block_id] = digest
        return True

    def remove(self, block_id: int) -> None:
        """Forget an indexed block, which is about to hold something else."""
        del self._block_of[self._digest_of.pop(block_id)]

    def check(self) -> None:
        """Prove that both directions agree."""
        assert {block: digest for digest, block in self._block_of.items()} == self._digest_of
