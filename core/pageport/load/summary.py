"""``summarise``: the figures of a run, under the names that vLLM's benchmark gives them."""

import statistics
from collections.abc import Sequence
from typing import Any

from pageport.load.answer import Answer
from pageport.load.goodput import Objective
from pageport.load.load_run import LoadResult
from pageport.load.percentile import percentile

SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
# name in the results, what people call it
LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between chunks",
    "e2el": "end to end",
}


def summarise(result: LoadResult, objectives: Sequence[Objective] = ()) -> dict[str, Any]:
    """Return rates, latencies in milliseconds, and every error by kind; values that nothing tells are None."""
    answers = result.answers
    prompt_tokens = sum(answer.num_prompt_tokens or 0 for answer in answers)
    output_tokens = sum(answer.tokens for answer in answers)
    seconds = result.duration_s
    summary: dict[str, Any] = {
        "num_requests": result.num_requests,
        "completed": len(answers),
        "failed": sum(result.errors.values()),
        "errors": dict(result.errors),
        "first_error_messages": dict(result.first_messages),
        "duration_s": seconds,
        "max_concurrent_requests": result.most_at_once,
        "mean_client_wait_ms": _mean(wait * 1e3 for wait in result.waits_s),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "answers_of_another_length": sum(answer.tokens != answer.wanted_tokens for answer in answers),
        "answers_without_usage": sum(answer.num_tokens is None for answer in answers),
        "request_throughput": len(answers) / seconds,
        "output_throughput": output_tokens / seconds,
        "total_token_throughput": (prompt_tokens + output_tokens) / seconds,
    }
    for name, values in latencies(answers).items():
        summary[f"mean_{name}_ms"] = _mean(values)
        for statistic, share in SHARES.items():
            summary[f"{statistic}_{name}_ms"] = percentile(values, share) if values else None
    if objectives:
        good = sum(all(objective.is_met_by(answer) for objective in objectives) for answer in answers)
        summary["objectives_ms"] = {objective.measure: objective.limit_ms for objective in objectives}
        summary["good_share"] = good / result.num_requests  # a failed request is none
        summary["request_goodput"] = good / seconds
    return summary


def latencies(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Return each latency's values in milliseconds; an answer of one token has no time per further token."""
    return {
        "ttft": [answer.first_token_ms for answer in answers],
        "tpot": [answer.ms_per_token for answer in answers if answer.tokens > 1],
        "itl": [gap for answer in answers for gap in answer.between_chunks_ms],
        "e2el": [answer.whole_ms for answer in answers],
    }


def _mean(values: Any) -> float | None:
    kept = list(values)
    return statistics.fmean(kept) if kept else None
