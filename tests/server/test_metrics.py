"""``/metrics``: our names, those of dashboards made for vLLM, and what the numbers mean."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from pageport.engine.messages import EngineRequest, EngineStats
from pageport.server import metric_names as names
from pageport.server.metric_names import MetricName

from .conftest import ScriptedEngine, app_for, ask, samples

# What the dashboards of vLLM's own documentation ask for.
DASHBOARD_NAMES = (
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count",
    "prompt_tokens_total", "generation_tokens_total", "time_per_output_token_seconds_bucket",
    "inter_token_latency_seconds_bucket", "num_requests_running", "num_requests_waiting",
    "time_to_first_token_seconds_bucket", "kv_cache_usage_perc", "gpu_cache_usage_perc", "request_prompt_tokens_bucket",
    "request_generation_tokens_bucket", "request_success_total", "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum",
    "request_inference_time_seconds_sum", "request_params_n_sum", "request_params_max_tokens_sum",
    "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "cache_config_info",
    "request_time_per_output_token_seconds_bucket",
)  # fmt: skip
# What Prometheus sends: version 3, version 2, and one that is told to use the text format.
SCRAPERS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5,*/*;q=0.2",
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1",
    "application/openmetrics-text;version=1.0.0;escaping=underscores",
    "text/plain;version=1.0.0;escaping=underscores",
    "text/plain;version=0.0.4",
    "*/*",
)
DOCUMENT = Path(__file__).parents[2] / "docs" / "observability.md"
ALIASED = [name for name in (*names.GAUGES, *names.COUNTERS, *names.HISTOGRAMS, names.FINISHED) if name.vllm]


class QueueingEngine(ScriptedEngine):
    """Says how long a request waited; half a second for each that came before it."""

    def _script(self, request: EngineRequest) -> Any:
        for step, deltas in enumerate(super()._script(request)):
            if step == 0:
                deltas[-1].queued_s = 0.5 * len(self.requests)
            yield deltas


def scrape(engine: ScriptedEngine, *bodies: dict[str, Any], path: str = "/v1/completions") -> dict[str, float]:
    app = app_for(engine)
    for body in bodies:
        ask(app, "POST", path, json=body)
    return samples(ask(app, "GET", "/metrics").text)


def test_dashboards_made_for_vllm_find_their_series_and_the_model(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    text = ask(app, "GET", "/metrics").text
    labelled = [line for line in text.splitlines() if line.startswith("vllm:") and 'model_name="org/tiny"' in line]
    assert {line[len("vllm:") : line.index("{")] for line in labelled} >= set(DASHBOARD_NAMES)
    assert 'finished_reason="stop"' in text
    assert 'num_gpu_blocks="64"' in text


@pytest.mark.parametrize("name", ALIASED, ids=lambda name: name.own)
def test_each_other_name_shows_the_same_number(name: MetricName) -> None:
    engine = QueueingEngine()
    fields = [field for field in EngineStats.__slots__ if field not in ("kv_waste_ratio", "finished_total")]
    engine.stats = EngineStats(finished_total={"stop": 3}, **{field: random.randint(1, 99) for field in fields})
    seen = scrape(engine, {"prompt": "a"})
    own = {key: value for key, value in seen.items() if key.startswith(f"pageport:{name.own}")}
    for vllm_name in name.vllm:
        # Both end in what is measured: nothing, total, sum, count, or the bounds of a bucket.
        shown = {key: value for key, value in seen.items() if key.startswith(f"vllm:{vllm_name}")}
        assert sorted(own.values()) == sorted(shown.values())
    assert any(own.values())


def test_a_request_s_lengths_and_times_are_counted_once() -> None:
    seen = scrape(QueueingEngine(), {"prompt": ["abc", "de"], "n": 2, "max_tokens": 4})
    expected = {
        "request_prompt_tokens_sum": 5, "request_generation_tokens_sum": 16, "request_max_choice_tokens_sum": 4,
        "request_choices_sum": 2, "request_max_tokens_sum": 4, "queue_time_seconds_sum": 0.5,
        "queue_time_seconds_count": 1, "decode_time_seconds_count": 1, "time_per_output_token_seconds_count": 1,
    }  # fmt: skip
    assert {name: seen[f"pageport:{name}"] for name in expected} == expected


def test_the_parts_of_a_request_s_time_add_up() -> None:
    engine = ScriptedEngine()
    script = engine._script

    def scheduled_at_once(request: EngineRequest) -> Any:
        for step, deltas in enumerate(script(request)):
            deltas[0].queued_s = 0.0 if step == 0 else None
            yield deltas

    engine._script = scheduled_at_once  # type: ignore[method-assign]
    seen = scrape(engine, {"prompt": "a"})
    parts = [seen[f"pageport:{name}_time_seconds_sum"] for name in ("queue", "prefill", "decode")]
    first_s, whole_s = (seen[f"pageport:{name}_seconds_sum"] for name in ("time_to_first_token", "e2e_request_latency"))
    assert parts[0] + parts[1] == pytest.approx(first_s)
    assert sum(parts[1:]) == pytest.approx(seen["pageport:inference_time_seconds_sum"])
    assert sum(parts) <= whole_s


@pytest.mark.parametrize("engine", [ScriptedEngine(fail_after=2), ScriptedEngine(hang_after=2)])
def test_a_request_that_was_broken_off_is_in_no_distribution(engine: ScriptedEngine) -> None:
    seen = scrape(engine, {"prompt": "a", "timeout": 0.05})
    assert seen["pageport:time_to_first_token_seconds_count"] == 1
    assert not [key for key, value in seen.items() if "request_" in key and key.endswith("_count") and value]
    assert sum(value for key, value in seen.items() if key.startswith("pageport:http_responses_total")) == 1


@pytest.mark.parametrize("accept", SCRAPERS)
def test_every_scraper_gets_the_same_names(engine: ScriptedEngine, accept: str) -> None:
    app = app_for(engine)
    ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    plain = {key.split()[0] for key in samples(ask(app, "GET", "/metrics").text)}
    answer = ask(app, "GET", "/metrics", headers={"accept": accept})
    is_openmetrics = answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert is_openmetrics == accept.startswith("application/openmetrics-text;version=1.0.0")
    parse = openmetrics_families if is_openmetrics else text_string_to_metric_families
    assert {sample.name for family in parse(answer.text) for sample in family.samples} == plain


def test_the_documentation_lists_every_metric(engine: ScriptedEngine) -> None:
    families = text_string_to_metric_families(ask(app_for(engine), "GET", "/metrics").text)
    names = {(f.name, f.type) for f in families if f.name.startswith(("pageport:", "vllm:"))}
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `pageport:")]
    listed = {(name, row[1]) for row in rows for name in re.findall(r"`([\w:]+)`", row[0] + row[3])}
    # A counter's samples end in _total, its family does not; when something was created is shown by no name of its own.
    documented = {(name.removesuffix("_total") if kind == "counter" else name, kind) for name, kind in listed}
    assert documented == {(name, kind) for name, kind in names if not name.endswith("_created")}


def test_clients_cannot_make_series(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    count = [len(samples(ask(app, "GET", "/metrics").text))]
    for number in range(5):
        ask(app, "GET", f"/v1/models/{number}")
        ask(app, "GET", f"/{number}")
        ask(app, "POST", "/v1/completions", json={"prompt": "a", "model": f"model-{number}"})
        count.append(len(samples(ask(app, "GET", "/metrics").text)))
    assert count[2:] == count[1:-1]


def test_every_reason_is_shown_before_anybody_ended_for_it(engine: ScriptedEngine) -> None:
    seen = scrape(engine)
    reasons = ("stop", "length", "abort", "error", "timeout")
    assert [seen[f"pageport:requests_finished_total {reason}"] for reason in reasons] == [0] * 5


def test_counters_go_on_after_the_engine_that_counted_died() -> None:
    first = EngineStats(
        num_running=2, num_waiting=1, kv_blocks_total=9, kv_blocks_used=5, prompt_tokens_total=7, steps_total=3,
        finished_total={"stop": 2, "abort": 1},
    )  # fmt: skip
    ended = first.at_death(3)
    assert ended == replace(
        first, num_running=0, num_waiting=0, kv_blocks_used=0, finished_total={"stop": 2, "abort": 1, "error": 3}
    )
    second = EngineStats(num_running=1, kv_blocks_total=8, prompt_tokens_total=4, finished_total={"stop": 5})
    assert second.after(ended) == replace(
        second, prompt_tokens_total=11, steps_total=3, finished_total={"stop": 7, "abort": 1, "error": 3}
    )


def test_every_counter_of_the_engine_goes_on() -> None:
    counters = [name for name in EngineStats.__slots__ if name.endswith("_total") and name != "kv_blocks_total"]
    counters.remove("finished_total")
    stats = EngineStats(**dict.fromkeys(counters, 2))
    assert {getattr(stats.after(stats), name) for name in counters} == {4}
