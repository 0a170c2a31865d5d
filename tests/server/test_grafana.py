"""The dashboard in ``docs/grafana``: every panel asks for what a server shows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pageport.engine.messages import EngineStats

from .conftest import ScriptedEngine, app_for, ask

FILE = Path(__file__).parents[2] / "docs" / "grafana" / "pageport.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
FUNCTIONS = {"sum", "max", "rate", "increase", "histogram_quantile", "by"}
# What Prometheus adds to every series.
ADDED_LABELS = {"instance", "job"}


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The labels of each series that a server shows after a request."""
    engine = ScriptedEngine()
    engine.stats = EngineStats(kv_waste_ratio=(0.1,))
    app = app_for(engine)
    ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    families = list(text_string_to_metric_families(ask(app, "GET", "/metrics").text))
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_query_asks_for_what_is_there(series: dict[str, set[str]], expression: str) -> None:
    # What stands before a selector is a series; every other word is a function, or a label after by.
    asked = set(re.findall(r"([a-z_:][a-z0-9_:]*)\{", expression))
    grouped = set(re.findall(r"by \((\w+)\)", expression))
    selected = set(re.findall(r"(\w+)=~", expression))
    words = set(re.findall(r"\$?[a-z_:][a-z0-9_:]+", re.sub(r"\{.*?\}", "", expression)))
    assert asked and asked <= set(series)
    assert words - asked - grouped - {"$__rate_interval"} <= FUNCTIONS
    for name in asked:
        assert grouped | selected <= series[name] | ADDED_LABELS
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_legend_names_a_label_that_the_query_keeps(series: dict[str, set[str]], panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        grouped = re.findall(r"by \((\w+)\)", target["expr"])
        (first, *_) = re.findall(r"([a-z_:][a-z0-9_:]*)\{", target["expr"])
        kept = set(grouped) if grouped else series[first] | ADDED_LABELS
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept


def test_no_panel_lies_on_another() -> None:
    cells: list[tuple[int, int]] = []
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns = range(place["x"], place["x"] + place["w"])
        cells += [(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])]
    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_panel_takes_the_chosen_data_source_and_instance() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "instance"}
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert all('instance=~"$instance"' in expression for expression in EXPRESSIONS)
