"""``StatusLog``: one line every ten seconds while the engine is busy."""

import time
from collections.abc import Callable

from pageport.engine.messages import EngineStats

INTERVAL_S = 10.0


class StatusLog:
    """Turns the counters of successive steps into rates."""

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._since = clock()
        self._last = EngineStats()

    def line(self, stats: EngineStats) -> str | None:
        """Return the line when it is due, else None.

        Called after a step, so an idle engine says nothing; after a pause the interval starts anew.
        """
        now = self._clock()
        elapsed = now - self._since
        if elapsed < self._interval_s:
            return None
        last, self._last, self._since = self._last, stats, now
        if elapsed > 2 * self._interval_s and not stats.num_running:
            return None
        computed = stats.prompt_tokens_total - last.prompt_tokens_total
        generated = stats.generation_tokens_total - last.generation_tokens_total
        asked = stats.prefix_query_tokens_total - last.prefix_query_tokens_total
        hits = stats.prefix_hit_tokens_total - last.prefix_hit_tokens_total
        return (
            f"running {stats.num_running}, waiting {stats.num_waiting}, "
            f"KV cache {stats.kv_blocks_used / max(1, stats.kv_blocks_total):.1%}, "
            f"prompt {computed / elapsed:.0f} tokens/s, generation {generated / elapsed:.0f} tokens/s, "
            f"prefix hits {hits / max(1, asked):.0%}"
        )
