"""The engine in its own process: answers, aborts, and what happens when one of the two dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pageport.cache.block_pool import BlockState
from pageport.config import EngineConfig
from pageport.engine.async_engine import FIRST_RESTART_DELAY_S, AsyncEngine
from pageport.errors import EngineDead, EngineOverloaded, InvalidParameter, ModelNotFound, PageportError, RequestTooLong
from pageport.sampling.params import SamplingParams
from pageport.sampling.structured import StructuredOutput

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)


def with_engine(model: Path, test: Callable[[AsyncEngine], Awaitable[None]], **settings: object) -> None:
    """Run ``test`` on a started engine and close it whatever happens."""

    async def run() -> None:
        config = EngineConfig.from_flat(**{"model": str(model), "max_num_seqs": 8, "num_kv_blocks": 256, **settings})
        engine = await AsyncEngine.start(config)
        try:
            await asyncio.wait_for(test(engine), timeout=60)
        finally:
            await engine.close()

    asyncio.run(run())


async def text_of(engine: AsyncEngine, prompt: str, params: SamplingParams, request_id: str) -> str:
    return "".join(
        [delta.text async for deltas in engine.generate(prompt, params, request_id=request_id) for delta in deltas]
    )


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.01)


def test_concurrent_requests_get_the_answers_they_get_alone(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        prompts = ["Hello", "abc " * 20, "naïve 🔥"]
        alone = [await text_of(engine, p, GREEDY, f"alone-{p}") for p in prompts]
        together = await asyncio.gather(*(text_of(engine, p, GREEDY, f"together-{p}") for p in prompts))
        assert together == alone
        assert engine.stats.kv_blocks_used == 0

    with_engine(tiny_llama, test)


def test_closing_a_stream_frees_its_blocks(tiny_llama: Path) -> None:
    """ABT-01."""

    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate("Hello", LONG, request_id="a")
        await anext(stream)
        await stream.aclose()
        await until(lambda: engine.stats.finished_total.get("abort") == 1)
        assert engine.stats.kv_blocks_used == 0
        assert engine.stats.num_running == 0

    with_engine(tiny_llama, test)


def test_a_refused_request_raises_before_anything_is_sent(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        with pytest.raises(RequestTooLong):
            engine.prepare("x" * 2000, GREEDY, request_id="a")
        assert await text_of(engine, "fine", GREEDY, "b")

    with_engine(tiny_llama, test)


def test_a_full_queue_is_told_to_the_request_it_refuses(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        running = [engine.generate("Hello", LONG, request_id=str(i)) for i in range(2)]
        await anext(running[0])
        waiting = asyncio.ensure_future(anext(running[1]))
        await until(lambda: engine.stats.num_waiting == 1)
        with pytest.raises(EngineOverloaded, match="1 requests are waiting"):
            await text_of(engine, "x", GREEDY, "refused")
        await running[0].aclose()
        assert await waiting
        await running[1].aclose()

    with_engine(tiny_llama, test, max_num_seqs=1, max_queued_requests=1)


def test_a_killed_engine_ends_streams_with_one_sentence(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        stream = engine.generate("Hello", LONG, request_id="a")
        await anext(stream)
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="was killed by signal 9"):
            async for _ in stream:
                pass
        assert engine.error is not None
        with pytest.raises(EngineDead):
            engine.prepare("x", GREEDY, request_id="b")

    with_engine(tiny_llama, test)


def test_a_killed_engine_is_started_again_after_ever_longer_delays(tiny_llama: Path) -> None:
    async def test() -> None:
        engine = await AsyncEngine.start(EngineConfig.from_flat(model=str(tiny_llama), num_kv_blocks=64), restarts=True)
        before, delays = await text_of(engine, "x", GREEDY, "before"), []
        for number in range(2):
            delays.append(engine._restart_delay_s)
            stream = engine.generate("Hello", LONG, request_id=f"broken {number}")
            await anext(stream)
            engine._process.kill()
            with pytest.raises(EngineDead, match="killed by signal 9"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineDead):
                engine.prepare("x", GREEDY, request_id="meanwhile")
            assert (engine.stats.num_running, engine.stats.kv_blocks_used) == (0, 0)
            await until(lambda: engine.error is None, 60)
            assert await text_of(engine, "x", GREEDY, f"after {number}") == before
            # What the first process counted is not lost, and who was told of an error is counted as such.
            assert engine.stats.prompt_tokens_total == 2 + number + 5 * (number + 1)
            assert engine.stats.finished_total == {"length": 2 + number, "error": number + 1}
        assert delays[1] == 2 * delays[0]
        await engine.close()

    asyncio.run(test())


def test_the_engine_shows_what_each_block_is_used_for(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        (unused,) = await engine.block_states()
        assert set(unused) == {BlockState.FREE}
        stream = engine.generate("a" * 40, replace(LONG, n=2), request_id="a")
        for _ in range(4):
            await anext(stream)
        first, second = await asyncio.gather(engine.block_states(), engine.block_states())
        assert first == second
        assert {BlockState.SHARED, BlockState.USED} <= set(first[0])
        await stream.aclose()
        await until(lambda: engine.stats.kv_blocks_used == 0)
        assert set((await engine.block_states())[0]) == {BlockState.FREE, BlockState.CACHED}

    with_engine(tiny_llama, test)


def test_an_engine_that_only_compiles_grammars_is_not_silent(tiny_llama: Path) -> None:
    """An explosive one takes two seconds to be refused; many of them must not look like a stall."""

    async def test(engine: AsyncEngine) -> None:
        schemas = [f'{{"type": "integer", "multipleOf": {prime}}}' for prime in (999983, 999979, 999961, 999959)]
        forms = [replace(GREEDY, structured=StructuredOutput(json_schema=schema)) for schema in schemas]
        asking = asyncio.gather(*(text_of(engine, "x", form, str(form)) for form in forms), return_exceptions=True)
        silence_s, started = 0.0, time.monotonic()
        while not asking.done():
            silence_s = max(silence_s, engine._silence_s())
            await asyncio.sleep(0.01)
        assert [type(answer) for answer in await asking] == [InvalidParameter] * len(forms)
        # Two at a time: twice two seconds of processor time, on a machine that may be busy with other things.
        assert silence_s < 3 < time.monotonic() - started

    with_engine(tiny_llama, test)


def test_cached_tokens_are_told_once_a_request(tiny_llama: Path) -> None:
    """KVC-04: however many steps its answer takes, and however many choices it has."""

    async def told(engine: AsyncEngine, request_id: str) -> list[int]:
        stream = engine.generate("a" * 40, replace(GREEDY, n=2), request_id=request_id)
        counts = [delta.num_cached_tokens async for deltas in stream for delta in deltas]
        return [count for count in counts if count is not None]

    async def test(engine: AsyncEngine) -> None:
        assert [await told(engine, request_id) for request_id in "ab"] == [[0], [32]]

    with_engine(tiny_llama, test)


def test_who_looks_at_blocks_when_the_engine_dies_is_told(tiny_llama: Path) -> None:
    async def test(engine: AsyncEngine) -> None:
        os.kill(engine._process.pid, signal.SIGSTOP)
        looking = asyncio.create_task(engine.block_states())
        await asyncio.sleep(0.05)
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="signal 9"):
            await looking
        with pytest.raises(EngineDead, match="signal 9"):
            await engine.block_states()

    with_engine(tiny_llama, test)


@pytest.mark.parametrize(
    ("longest_step_s", "silence_s", "is_stalled"),
    [(None, 50, False), (None, 70, True), (0.1, 7, False), (0.1, 9, True), (6.0, 20, False), (6.0, 30, True)],
)
def test_an_engine_stalls_when_it_is_silent_for_longer_than_its_steps_take(
    longest_step_s: float | None, silence_s: float, is_stalled: bool
) -> None:
    engine = AsyncEngine(EngineConfig.from_flat(model="none"))
    engine._longest_step_s = longest_step_s
    engine._last_progress = time.monotonic() - silence_s
    assert not engine.is_stalled(8.0)  # idle
    engine._streams["a"] = asyncio.Queue()
    assert engine.is_stalled(8.0) == is_stalled


def test_no_engine_is_started_again_once_closed(tiny_llama: Path) -> None:
    async def test() -> None:
        engine = await AsyncEngine.start(EngineConfig.from_flat(model=str(tiny_llama), num_kv_blocks=64), restarts=True)
        engine._process.kill()
        await until(lambda: engine.error is not None, 10)
        dead = engine._process
        await engine.close()
        await asyncio.sleep(2 * FIRST_RESTART_DELAY_S)
        assert engine._process is dead

    asyncio.run(test())


def test_the_engine_exits_when_its_parent_is_killed(tiny_llama: Path) -> None:
    """OPS-01."""
    code = f"""
import asyncio
from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
async def run():
    engine = await AsyncEngine.start(EngineConfig.from_flat(model={str(tiny_llama)!r}, num_kv_blocks=64))
    print(engine._process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.05)


def test_a_missing_model_fails_before_a_process_starts() -> None:
    with pytest.raises(ModelNotFound, match="/no/such/model"):
        asyncio.run(AsyncEngine.start(EngineConfig.from_flat(model="/no/such/model")))


def test_a_start_up_failure_arrives_as_its_sentence(tiny_llama: Path) -> None:
    config = EngineConfig.from_flat(model=str(tiny_llama), max_model_len=100_000)
    with pytest.raises(PageportError, match="max-model-len is 100000"):
        asyncio.run(AsyncEngine.start(config))
