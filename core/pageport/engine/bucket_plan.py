"""``BucketPlan``: the shapes a device compiles for one engine, and the smallest one that holds a step."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from pageport.backend.capabilities import Capabilities
from pageport.backend.program import Bucket
from pageport.errors import UnsupportedFeature


class BucketPlan:
    """Every combination of the declared sizes that this engine can need, and no other."""

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        max_num_seqs: int,
        step_tokens: int,
        max_model_len: int,
        block_sizes: Sequence[int],
    ) -> None:
        """Take of each declared list what the engine's limits leave of it.

        Args:
            block_sizes: of every cache group; contexts are rounded up to whole blocks.
        """
        whole = math.lcm(*block_sizes)
        declared = capabilities.context_buckets or (max_model_len,)
        self._requests = _needed(capabilities.request_buckets, max_num_seqs)
        self._tokens = _needed(capabilities.token_buckets, step_tokens)
        self._contexts = tuple(dict.fromkeys(-(-c // whole) * whole for c in _needed(declared, max_model_len)))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All of them: decodes, then prompts, each from the smallest to the largest."""
        decodes = [Bucket(n, n, context) for n in self._requests for context in self._contexts]
        prompts = [Bucket(1, n, context) for n in self._tokens for context in self._contexts]
        return tuple(dict.fromkeys(decodes + prompts))

    @property
    def description(self) -> str:
        """Say in a few words which shapes there are."""
        requests, tokens, contexts = (", ".join(map(str, s)) for s in (self._requests, self._tokens, self._contexts))
        return f"{requests} decodes or {tokens} tokens of a prompt, contexts of {contexts}"

    @property
    def max_decodes(self) -> int:
        """Most decodes of one step."""
        return self._requests[-1]

    @property
    def max_tokens(self) -> int:
        """Most tokens of a prompt in one step."""
        return self._tokens[-1]

    def of_decodes(self, num_requests: int, seq_len: int) -> Bucket:
        """Return the shape for so many decodes, the longest of which then has ``seq_len`` tokens."""
        size = _fitting(self._requests, num_requests)
        return Bucket(size, size, _fitting(self._contexts, seq_len))

    def of_prompt(self, num_tokens: int, seq_len: int) -> Bucket:
        """Return the shape for so many tokens of one prompt, which then has ``seq_len``."""
        return Bucket(1, _fitting(self._tokens, num_tokens), _fitting(self._contexts, seq_len))


def longest_context(capabilities: Capabilities, asked: int | None) -> int | None:
    """Return the longest context the device compiles for; None: any.

    Raises:
        UnsupportedFeature: a longer one was asked for.
    """
    if not capabilities.static_shapes or not capabilities.context_buckets:
        return None
    longest = capabilities.context_buckets[-1]
    if asked is not None and asked > longest:
        raise UnsupportedFeature(
            f"--max-model-len is {asked}; this device compiles programs for contexts of up to {longest} tokens. Lower "
            "--max-model-len, or set the backend's option for context buckets if it has one."
        )
    return longest


def _needed(sizes: Sequence[int], limit: int) -> tuple[int, ...]:
    """Return the sizes up to the first that is at least ``limit``."""
    return tuple(sizes[: bisect_left(sizes, limit) + 1])


def _fitting(sizes: Sequence[int], size: int) -> int:
    return sizes[bisect_left(sizes, size)]
