"""``run_load``: send requests when they are due, and collect what becomes of them."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from pageport.load.answer import Answer, BadAnswer
from pageport.load.dataset import LoadPrompt
from pageport.load.target import Target


@dataclass
class LoadResult:
    """All answers of a run; a request is in ``answers`` or counted in ``errors``."""

    num_requests: int
    duration_s: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    first_messages: dict[str, str] = field(default_factory=dict)  # by kind of error
    waits_s: list[float] = field(default_factory=list)  # of requests that were due, for others to end
    most_at_once: int = 0


async def run_load(
    target: Target,
    prompts: Sequence[LoadPrompt],
    due: Sequence[float],
    *,
    concurrency: int | None = None,
    timeout_s: float | None = None,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> LoadResult:
    """Send each prompt at its time, but at most ``concurrency`` at once; failures are counted by kind."""
    result = LoadResult(num_requests=len(prompts))
    place = asyncio.Semaphore(concurrency) if concurrency is not None else nullcontext()
    running = num_done = 0
    start = time.perf_counter()

    async def send(prompt: LoadPrompt, due_s: float) -> None:
        nonlocal running, num_done
        await asyncio.sleep(start + due_s - time.perf_counter())
        async with place:
            result.waits_s.append(max(0.0, time.perf_counter() - start - due_s))
            running += 1
            result.most_at_once = max(result.most_at_once, running)
            await _ask(target, prompt, timeout_s, result)
            running -= 1
        num_done += 1
        on_done(num_done, len(prompts))

    async with asyncio.TaskGroup() as tasks:
        for prompt, due_s in zip(prompts, due, strict=True):
            tasks.create_task(send(prompt, due_s))
    result.duration_s = time.perf_counter() - start
    return result


async def _ask(target: Target, prompt: LoadPrompt, timeout_s: float | None, result: LoadResult) -> None:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            result.answers.append(await target.ask(prompt))
        return
    except BadAnswer as error:
        kind, message = error.kind, str(error)
    except OSError as error:
        kind, message = "connection", f"{type(error).__name__}: {error}"
        if limit.expired():
            kind, message = "timeout", f"no answer within {timeout_s} s"
    result.errors[kind] += 1
    result.first_messages.setdefault(kind, message)
