"""``CacheUsage``: how full the device's KV cache is."""

from typing import NamedTuple


class CacheUsage(NamedTuple):
    """Blocks and tokens of every cache group: ``free + cached + used == total``."""

    total: tuple[int, ...]
    used: tuple[int, ...]  # held by sequences; shared blocks once
    cached: tuple[int, ...]  # held by nobody, content reusable
    free: tuple[int, ...]
    tokens_stored: tuple[int, ...]  # in used blocks
    waste_ratio: tuple[float, ...]  # 1 - tokens stored / (used blocks * block size)
