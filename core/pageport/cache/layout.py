"""``GroupLayout``: a cache group as the block manager sees it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """``num_blocks`` blocks of ``block_size`` tokens; with a window, a token sees only the last ``sliding_window``."""

    num_blocks: int
    block_size: int
    sliding_window: int | None = None
    num_host_blocks: int = 0  # of the swap pool
