"""``SchedulerStats``: what scheduler and cache count."""

from collections import Counter
from dataclasses import dataclass, field, replace

COUNTERS = (
    "steps_total",
    "prompt_tokens_total",
    "computed_tokens_total",
    "generation_tokens_total",
    "prefix_query_tokens_total",
    "prefix_hit_tokens_total",
    "preemptions_total",
    "swapped_out_blocks_total",
    "copied_blocks_total",
)


@dataclass(slots=True, kw_only=True)
class SchedulerStats:
    """Counters since the start and gauges of this moment, named as in ``EngineStats``.

    Recomputed tokens are in ``computed_tokens_total`` only. ``finished_total`` counts sequences; of a beam search,
    the hypotheses it returns.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_waste_ratio: tuple[float, ...] = ()
    steps_total: int = 0
    prompt_tokens_total: int = 0
    computed_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    preemptions_total: int = 0
    swapped_out_blocks_total: int = 0
    copied_blocks_total: int = 0
    finished_total: dict[str, int] = field(default_factory=dict)

    def after(self, earlier: "SchedulerStats") -> "SchedulerStats":
        """Return the same with counters that go on from those of an engine that has ended."""
        counters = {name: getattr(earlier, name) + getattr(self, name) for name in COUNTERS}
        finished = Counter(earlier.finished_total) + Counter(self.finished_total)
        return replace(self, **counters, finished_total=dict(finished))

    def at_death(self, num_open: int) -> "SchedulerStats":
        """Return what is left when the engine dies: counters, and an error for each of ``num_open`` choices."""
        finished = Counter(self.finished_total)
        finished["error"] += num_open
        return replace(self, num_running=0, num_waiting=0, kv_blocks_used=0, finished_total=dict(finished))
