"""The measurement of what the API costs, and the engine without a device that it needs."""

import asyncio
import json
import sys
from pathlib import Path

import api_overhead
import pytest

from pageport.sampling.params import SamplingParams
from pageport.testing.null_engine import NullAsyncEngine, null_config
from pageport.testing.tiny_model import write_tiny_llama


def test_a_null_engine_streams_what_it_is_told_to_say(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")

    async def generate() -> str:
        engine = await NullAsyncEngine.start(null_config(str(model), token_id=ord("w")))
        try:
            params = SamplingParams(temperature=0, max_tokens=5)
            deltas = [d async for group in engine.generate("hi", params, request_id="a") for d in group]
            return "".join(delta.text for delta in deltas)
        finally:
            await engine.close()

    assert asyncio.run(generate()) == "wwwww"


def test_the_measurement_tells_the_engines_share_and_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_tiny_llama(tmp_path / "tiny"))
    sizes = ["--requests", "5", "--streams", "3", "--tokens", "8"]
    monkeypatch.setattr(sys, "argv", ["api_overhead.py", model, *sizes])
    api_overhead.main()
    results = [json.loads(line.removeprefix("RESULT ")) for line in capsys.readouterr().out.splitlines()]
    assert [result["workload"] for result in results] == ["completions", "chat"]
    for result in results:
        assert 0 < result["engine_ttft_p50"] < result["ttft_p50"]
        assert result["added_ms"] == pytest.approx(result["ttft_p50"] - result["engine_ttft_p50"], abs=0.01)
        assert result["out_tps"] > 0
