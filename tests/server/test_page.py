"""The page and what it shows of the engine."""

import re

import pytest

from pageport.server.page import MOST_CELLS, block_map

from .conftest import ScriptedEngine, app_for, ask


def test_the_page_brings_everything_it_needs(engine: ScriptedEngine) -> None:
    response = ask(app_for(engine), "GET", "/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"https?://|src=|@import", response.text)
    # Behind a proxy's path prefix only relative addresses lead back here.
    assert re.findall(r'fetch\("([^"]*)"', response.text) == ["v1/chat/completions", "engine"]


@pytest.mark.parametrize("path", ["/", "/engine"])
def test_the_page_asks_for_the_key(engine: ScriptedEngine, path: str) -> None:
    assert ask(app_for(engine, api_key=("secret",)), "GET", path).status_code == 401


def test_the_engine_is_shown_as_it_is(engine: ScriptedEngine) -> None:
    engine.blocks = (bytes([0, 1, 2, 3, 3, 0]), bytes(2))
    engine.stats.num_running, engine.stats.generation_tokens_total = 3, 70
    seen = ask(app_for(engine), "GET", "/engine").json()
    assert (seen["model"], seen["running"], seen["waiting"], seen["generation_tokens"]) == ("org/tiny", 3, 0, 70)
    assert seen["blocks"] == [
        {"free": 2, "cached": 1, "used": 1, "shared": 2, "blocks_per_cell": 1, "cells": "012330"},
        {"free": 2, "cached": 0, "used": 0, "shared": 0, "blocks_per_cell": 1, "cells": "00"},
    ]


@pytest.mark.parametrize("num_blocks", [1, MOST_CELLS, MOST_CELLS + 1, 5 * MOST_CELLS - 1])
def test_a_large_cache_is_drawn_in_few_cells_and_no_block_is_lost(num_blocks: int) -> None:
    states = bytearray(num_blocks)
    states[-1] = 3
    drawn = block_map(bytes(states))
    assert len(drawn.cells) <= MOST_CELLS <= len(drawn.cells) * 2 or num_blocks < MOST_CELLS
    assert (drawn.cells[-1], drawn.cells.count("3"), drawn.shared, drawn.free) == ("3", 1, 1, num_blocks - 1)
    assert (len(drawn.cells) - 1) * drawn.blocks_per_cell < num_blocks <= len(drawn.cells) * drawn.blocks_per_cell


def test_a_dead_engine_shows_nothing(engine: ScriptedEngine) -> None:
    engine.error = "The engine process was killed by signal 9."
    response = ask(app_for(engine), "GET", "/engine")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
