"""Many requests through the engine: nobody waits for ever, leaving is free, and ids are unique."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pageport import LLM, SamplingParams
from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.channel import Abort
from pageport.server import generation

from ..server.conftest import events
from ..server.test_streaming import post_and_leave
from .engine_drive import EngineDrive
from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@DEPTHS
def test_a_prompt_that_arrives_while_16_requests_decode_starts_before_any_of_them_ends(
    open_llm: OpenLLM, tiny_llama: Path, depth: int
) -> None:
    """It is read in pieces beside the others, none of whom misses a step for it."""
    budget = 48
    llm = open_llm(tiny_llama, max_model_len=256, max_num_seqs=32, max_num_batched_tokens=budget, pipeline_depth=depth)
    random_numbers = random.Random(5)
    prompts = [[random_numbers.randrange(250) for _ in range(20)] for _ in range(16)]
    drive = EngineDrive(llm)
    running = [drive.add(prompt, greedy(40)) for prompt in prompts]
    decoding: set[str] = set()
    while decoding < set(running):
        decoding |= {delta.request_id for delta in drive.step()}
    late = drive.add([random_numbers.randrange(250) for _ in range(200)], greedy(4))
    arrived: set[str] = set()
    steps = 0
    while late not in arrived:
        arrived = {delta.request_id for delta in drive.step()}
        assert arrived >= set(running)
        steps += 1
    assert not any(map(drive.is_finished, running))
    # What 16 decodes leave of the budget is the prompt's.
    assert steps <= -(-200 // (budget - 16)) + depth
    drive.finish(late, *running)
    drive.require_idle()


def test_by_default_a_long_prompt_is_read_in_pieces_of_256_tokens_between_which_others_go_on(
    open_llm: OpenLLM, tiny_llama: Path
) -> None:
    """On the CPU, where longer steps compute no faster."""
    settings = {"max_num_batched_tokens": None, "enable_prefix_caching": False}
    llm = open_llm(tiny_llama, max_model_len=1024, num_kv_blocks=80, **settings)
    drive = EngineDrive(llm)
    running = drive.add([1, 2, 3], greedy(40))
    drive.step()
    late = drive.add([7] * 1000, greedy(4))
    steps = [{delta.request_id for delta in drive.step()} for _ in range(4)]
    assert steps[:3] == [{running}] * 3
    assert steps[3] == {running, late}
    drive.finish(late, running)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("settings", [{}, {"pipeline_depth": 1, "swap_space": 0.001}])
def test_streams_that_exceed_the_cache_many_times_all_finish(
    open_llm: OpenLLM, tiny_llama: Path, policy: str, settings: dict[str, Any]
) -> None:
    """SCH-01: 40 streams on 16 blocks; no two turns in a row in which requests wait and none runs or moves."""
    llm = open_llm(
        tiny_llama,
        num_kv_blocks=16,
        max_model_len=128,
        max_num_seqs=40,
        scheduling_policy=policy,
        **settings,
    )
    random_numbers = random.Random(3)
    prompts = [[random_numbers.randrange(250) for _ in range(random_numbers.randint(1, 90))] for _ in range(40)]
    drive = EngineDrive(llm)
    ids = [drive.add(prompt, greedy(16), priority=i % 3) for i, prompt in enumerate(prompts)]
    idle_turns = 0
    while not all(map(drive.is_finished, ids)):
        drive.step()
        idle_turns = idle_turns + 1 if drive.stats.num_running == 0 and drive.stats.num_waiting > 0 else 0
        assert idle_turns <= 1
        assert drive.stats.steps_total < 2000
    assert [len(output.outputs[0].token_ids) for output in drive.finish(*ids)] == [16] * 40
    assert drive.stats.preemptions_total > 0
    drive.require_idle()


@DEPTHS
def test_200_aborts_leave_the_blocks_as_they_were(open_llm: OpenLLM, tiny_llama: Path, depth: int) -> None:
    """ABT-01: in the queue, within a prefill, while decoding; gone within two turns."""
    drive = EngineDrive(open_llm(tiny_llama, pipeline_depth=depth, max_num_batched_tokens=8))
    for number in range(200):
        request_id = drive.add([number % 250] * (1 + number % 40), greedy(100))
        for _ in range(number % 4):
            drive.step()
        drive.abort(request_id)
        for _ in range(depth + 1):
            drive.step()
        drive.forget(request_id)
        drive.require_idle()
    assert drive.stats.finished_total == {"abort": 200}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("after_messages", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_blocks(
    open_llm: OpenLLM, tiny_llama: Path, path: str, after_messages: int, stream: bool
) -> None:
    """ABT-01: while it waits for the whole answer, and in the middle of a stream."""
    server = LocalServer(open_llm(tiny_llama, max_model_len=1000))
    asyncio.run(post_and_leave(server.app, path, endless(stream), after_messages if stream else 0))
    server.drive.step()
    server.drive.require_idle()
    assert server.llm.stats().finished_total == {"abort": 1}
    assert 0 < server.llm.stats().generation_tokens_total < 900


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_in_the_queue_was_never_computed(
    open_llm: OpenLLM, tiny_llama: Path, stream: bool
) -> None:
    """ABT-01: one runs, one waits and leaves first."""
    server = LocalServer(open_llm(tiny_llama, max_model_len=1000, max_num_seqs=1))

    async def run() -> None:
        running = asyncio.create_task(post_and_leave(server.app, PATHS[0], endless(True), 10**9))
        await asyncio.sleep(0.02)
        await post_and_leave(server.app, PATHS[0], endless(stream), 0)
        assert server.llm.stats().num_running == 1
        assert server.llm.stats().finished_total == {"abort": 1}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert server.llm.stats().prompt_tokens_total == len("hello")
    server.drive.step()
    server.drive.require_idle()


def endless(stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    return {"prompt": "hello", "messages": messages, "max_tokens": 900, "ignore_eos": True, "stream": stream}


def test_finished_streams_send_no_abort_and_aborts_are_idempotent(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ABT-02: over the border to the engine's process; 100 normal ends, then every kind of superfluous abort."""
    sent: list[Any] = []
    send = AsyncEngine._send
    monkeypatch.setattr(AsyncEngine, "_send", lambda self, command: (sent.append(command), send(self, command))[1])

    async def run() -> None:
        engine = await AsyncEngine.start(
            EngineConfig.from_flat(model=str(tiny_llama), num_kv_blocks=64, max_num_seqs=8)
        )
        try:
            await asyncio.gather(*(finish(engine, f"a{i}") for i in range(100)))
            assert not [command for command in sent if isinstance(command, Abort)]
            stream = engine.generate("x", greedy(500), request_id="b")
            await anext(stream)
            await stream.aclose()
            assert [command for command in sent if isinstance(command, Abort)] == [Abort("b")]
            for request_id in ("b", "b", "a5", "never"):
                engine._send(Abort(request_id))
            await finish(engine, "c")
            assert engine.stats.finished_total == {"length": 101, "abort": 1}
            assert engine.stats.kv_blocks_used == 0
        finally:
            await engine.close()

    asyncio.run(run())
    assert capfd.readouterr() == ("", "")


async def finish(engine: AsyncEngine, request_id: str) -> None:
    async for _ in engine.generate("x", greedy(2), request_id=request_id):
        pass


@DEPTHS
def test_an_abort_at_any_step_up_to_the_last_frees_each_block_once(
    open_llm: OpenLLM, tiny_llama: Path, depth: int
) -> None:
    """ABT-02: twice, before, during and after the last step; a neighbour goes on."""
    drive = EngineDrive(open_llm(tiny_llama, pipeline_depth=depth, max_num_batched_tokens=8))
    (expected,) = drive.finish(drive.add("neighbour", greedy(12)))
    for num_steps in range(10):
        neighbour, doomed = drive.add("neighbour", greedy(12)), drive.add("ab", greedy(4))
        for _ in range(num_steps):
            drive.step()
        for _ in range(2):
            drive.abort(doomed)
        (output,) = drive.finish(neighbour)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
        drive.forget(doomed)
        drive.require_idle()


@DEPTHS
@pytest.mark.parametrize("num_rounds", [15, pytest.param(200, marks=pytest.mark.full)])
def test_survivors_of_random_aborts_say_what_they_say_alone(
    open_llm: OpenLLM, tiny_llama: Path, depth: int, num_rounds: int
) -> None:
    """ABT-03: eight streams on a tiny cache, up to half of them aborted at some step, new ones at once."""
    prompts = [[(k * 31 + i) % 250 for i in range(1 + 5 * k)] for k in range(12)]
    alone = open_llm(tiny_llama, enable_prefix_caching=False, max_num_seqs=1)
    expected = [out.outputs[0].token_ids for out in alone.generate(prompts, greedy(10), use_tqdm=False)]
    tiny_cache = {"num_kv_blocks": 14, "max_model_len": 128, "max_num_batched_tokens": 16}
    drive = EngineDrive(open_llm(tiny_llama, pipeline_depth=depth, **tiny_cache))
    random_numbers = random.Random(11)
    running: dict[str, int] = {}
    num_survivors = 0
    for _ in range(num_rounds):
        for _ in range(8 - len(running)):
            k = random_numbers.randrange(12)
            running[drive.add(prompts[k], greedy(10))] = k
        for doomed in random_numbers.sample(sorted(running), random_numbers.randint(1, 4)):
            for _ in range(random_numbers.randrange(6)):
                drive.step()
            drive.abort(doomed)
            drive.forget(doomed)
            del running[doomed]
        for done in [request_id for request_id in running if drive.is_finished(request_id)]:
            assert drive.finish(done)[0].outputs[0].token_ids == expected[running.pop(done)]
            num_survivors += 1
    for output, k in zip(drive.finish(*running), running.values(), strict=True):
        assert output.outputs[0].token_ids == expected[k]
    assert num_survivors >= num_rounds // 2
    drive.step()
    drive.require_idle()


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    clock = SimpleNamespace(time=lambda: 1_700_000_000.9, perf_counter=lambda: 0.0)
    monkeypatch.setattr(generation, "time", clock)
    yield


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize(("path", "count"), [(PATHS[0], 200), (PATHS[1], 40)])
def test_ids_of_requests_in_the_same_second_are_unique(
    open_llm: OpenLLM, tiny_llama: Path, path: str, count: int
) -> None:
    """REQ-02: all at once, half of them streamed, with three choices each; one id from a stream's first chunk on."""
    server = LocalServer(open_llm(tiny_llama, max_num_seqs=64, max_num_batched_tokens=512))
    body: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "n": 3}
    responses = server.post_all([(path, {**body, "stream": bool(i % 2)}) for i in range(count)])
    ids = [response.json()["id"] for response in responses[::2]]
    for response in responses[1::2]:
        chunks = events(response)[:-1]
        assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == {0, 1, 2}
        assert {chunk["created"] for chunk in chunks} == {1_700_000_000}
        (own,) = {chunk["id"] for chunk in chunks}
        ids.append(own)
    assert len(set(ids)) == count
    assert {type(response.json()["created"]) for response in responses[::2]} == {int}
    assert [[c["index"] for c in response.json()["choices"]] for response in responses[::2]] == [[0, 1, 2]] * (
        count // 2
    )
