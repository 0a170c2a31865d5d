"""Probes, metrics, models, version."""

import subprocess
import sys
import warnings

import pytest
from fastapi import FastAPI
from openai.types import Model

from pageport import __version__
from pageport.engine.messages import EngineStats

from .conftest import ScriptedEngine, app_for, ask, samples


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_health_tells_the_truth(engine: ScriptedEngine, path: str) -> None:
    """OPS-03."""
    app = app_for(engine, stall_timeout=5)
    assert (ask(app, "GET", path).status_code, ask(app, "HEAD", path).status_code) == (200, 200)
    engine.stalled_s = 6
    assert (ask(app, "GET", path).status_code, ask(app, "GET", path).json()) == (503, {"status": "stalled"})
    engine.error = "The engine process was killed by signal 9."
    assert (ask(app, "GET", path).status_code, ask(app, "GET", path).json()) == (503, {"status": "dead"})


def scrape(app: FastAPI) -> dict[str, float]:
    return samples(ask(app, "GET", "/metrics").text)


def test_metrics_show_the_engines_counters(engine: ScriptedEngine) -> None:
    engine.stats = EngineStats(
        num_running=1, num_waiting=2, kv_blocks_total=64, kv_blocks_used=3, kv_waste_ratio=(0.02, 0.03),
        prompt_tokens_total=5, computed_tokens_total=9, generation_tokens_total=4, prefix_hit_tokens_total=16,
        preemptions_total=1, copied_blocks_total=2, finished_total={"stop": 5, "abort": 1},
    )  # fmt: skip
    seen = scrape(app_for(engine))
    expected = {
        "requests_running": 1, "requests_waiting": 2, "kv_blocks": 64, "kv_blocks_used": 3, "kv_waste_ratio 0": 0.02,
        "kv_waste_ratio 1": 0.03, "prompt_tokens_total": 5, "computed_tokens_total": 9, "generation_tokens_total": 4,
        "prefix_hit_tokens_total": 16, "preemptions_total": 1, "copied_blocks_total": 2,
        "requests_finished_total stop": 5, "requests_finished_total abort": 1,
    }  # fmt: skip
    assert {name: seen[f"pageport:{name}"] for name in expected} == expected


def test_latencies_are_counted_a_token_and_a_request(engine: ScriptedEngine) -> None:
    app = app_for(engine)
    ask(app, "POST", "/v1/completions", json={"prompt": "a", "n": 2})
    seen = scrape(app)
    assert seen["pageport:time_to_first_token_seconds_count"] == 2
    assert seen["pageport:inter_token_latency_seconds_count"] == 10
    assert seen["pageport:e2e_request_latency_seconds_count"] == 1


def test_refusals_are_counted_as_answers_only(engine: ScriptedEngine) -> None:
    """MET-01."""
    app = app_for(engine)
    ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    ask(app, "POST", "/v1/completions", json={"prompt": "a", "n": 0})
    ask(app, "GET", "/some/path")
    seen = scrape(app)
    assert seen["pageport:http_responses_total /v1/completions 200"] == 1
    assert seen["pageport:http_responses_total /v1/completions 400"] == 1
    assert seen["pageport:http_responses_total none 404"] == 1
    assert seen["pageport:e2e_request_latency_seconds_count"] == 1


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = app_for(ScriptedEngine()), app_for(ScriptedEngine())
    ask(first, "POST", "/v1/completions", json={"prompt": "a"})
    assert scrape(second)["pageport:time_to_first_token_seconds_count"] == 0


def test_models_lists_what_is_served(engine: ScriptedEngine) -> None:
    """INT-06: ids with slashes, too."""
    app = app_for(engine)
    (card,) = ask(app, "GET", "/v1/models").json()["data"]
    Model.model_validate(card, strict=True)
    assert (card["id"], card["max_model_len"]) == ("org/tiny", 128)
    assert ask(app, "GET", "/v1/models/org/tiny").json() == card
    assert ask(app, "GET", "/v1/models/org").json()["error"]["code"] == "model_not_found"


def test_version_is_told(engine: ScriptedEngine) -> None:
    assert ask(app_for(engine), "GET", "/version").json() == {"version": __version__}


def test_the_published_schema_holds_the_bodies(engine: ScriptedEngine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schema = ask(app_for(engine), "GET", "/openapi.json").json()
    body = schema["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    assert {"messages", "top_k", "max_completion_tokens"} <= set(
        schema["components"]["schemas"]["ChatRequest"]["properties"]
    )
    assert "ChatMessage" in schema["components"]["schemas"]


@pytest.mark.parametrize("prefix", ["/proxy", ""])
def test_a_proxys_prefix_is_not_part_of_the_route(engine: ScriptedEngine, prefix: str) -> None:
    """SEC-05: the list of open paths sees the path as the router does."""
    from pageport.server.auth import route_path

    scope = {"path": f"{prefix}/health", "root_path": prefix}
    assert route_path(scope) == "/health"
    assert route_path({"path": "/proxyhealth", "root_path": "/proxy"}) == "/proxyhealth"


def test_the_server_imports_no_torch() -> None:
    code = "import sys, pageport.server.app, pageport.server.run; print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
