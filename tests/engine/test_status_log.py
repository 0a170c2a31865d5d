"""The line that says what a busy engine does."""

from pageport.engine.messages import EngineStats
from pageport.engine.status_log import StatusLog


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_every_interval_with_rates_of_that_interval() -> None:
    clock = Clock()
    log = StatusLog(clock=clock)
    clock.now = 9.9
    assert log.line(EngineStats(num_running=1)) is None
    clock.now = 10.0
    first = EngineStats(
        num_running=3,
        num_waiting=2,
        kv_blocks_total=200,
        kv_blocks_used=50,
        prompt_tokens_total=1000,
        generation_tokens_total=500,
        prefix_query_tokens_total=1000,
        prefix_hit_tokens_total=250,
    )
    assert log.line(first) == (
        "running 3, waiting 2, KV cache 25.0%, prompt 100 tokens/s, generation 50 tokens/s, prefix hits 25%"
    )
    clock.now = 20.0
    assert log.line(first) == (
        "running 3, waiting 2, KV cache 25.0%, prompt 0 tokens/s, generation 0 tokens/s, prefix hits 0%"
    )
