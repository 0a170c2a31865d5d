"""``SchedulerStats``: what scheduler and cache count."""

from dataclasses import dataclass, field


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
