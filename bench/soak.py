"""Put a server under everything that clients do, and require a right answer or a right error each time.

    python bench/soak.py MODEL [--requests 5000] [--concurrency 64] [--seed 1]

Starts ``pageport serve MODEL``, asks some questions one by one, then asks them again among streams that are left,
connections that are cut, wrong bodies, deadlines and prompts that do not fit. In the end every answer must be the one
that was given alone, all cache blocks must be free, and memory must not have grown. Needs httpx.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx
from meter import all_descendants, memory_mb
from server_process import RunningServer, free_port, serving

OPTIONS = ("--num-kv-blocks", "512", "--max-model-len", "512", "--max-num-seqs", "32", "--disable-log-requests")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# Longer than the context, whatever the tokenizer.
ENDLESS = "word " * 20_000
# Bodies that are wrong, and the field that the error must name, if any.
WRONG: Sequence[tuple[str, bytes, str | None]] = (
    (COMPLETIONS, b"{", None),
    (COMPLETIONS, b"[]", None),
    (COMPLETIONS, b"\xff\xfe", None),
    (COMPLETIONS, b"{}", "prompt"),
    (COMPLETIONS, b'{"prompt": 7}', "prompt"),
    (COMPLETIONS, b'{"prompt": [-1]}', "prompt"),
    (COMPLETIONS, b'{"prompt": "a", "n": 0}', "n"),
    (COMPLETIONS, b'{"prompt": "a", "temperature": -1}', "temperature"),
    (COMPLETIONS, b'{"prompt": "a", "temperature": "warm"}', "temperature"),
    (COMPLETIONS, b'{"prompt": "a", "top_p": 2}', "top_p"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": -5}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "logit_bias": {"99999999": 1}}', "logit_bias"),
    (COMPLETIONS, json.dumps({"prompt": ENDLESS}).encode(), "prompt"),
    (CHAT, b"{}", "messages"),
    (CHAT, b'{"messages": []}', "messages"),
    (CHAT, b'{"messages": [{"role": 5, "content": "a"}]}', "messages"),
    (CHAT, b'{"messages": "a"}', "messages"),
)
GROWTH_MB_PER_1000 = 1.0
# Memory that fills once and stays (buffers, caches of compiled code, the heap at its fullest) is there after this share
# of the requests.
WARM_UP = 0.5
# With a heap for each thread, as the C library has them by itself, each takes its own time to be at its fullest.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "1"}


class SoakFailed(Exception):
    """The server did something wrong; says what, and to which request."""


@dataclass(frozen=True)
class Question:
    """A request whose answer does not depend on who else asks."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How many requests of each kind there were, and what the server grew by."""

    done: Mapping[str, int]
    growth_mb_per_1000: float


@dataclass
class Soak:
    """One run against one server."""

    client: httpx.AsyncClient
    chance: random.Random
    questions: list[Question]
    alone: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    async def prepare(self) -> None:
        """Ask every question alone."""
        for question in self.questions:
            self.alone.append(await self._answer(question))

    async def ask(self) -> None:
        """Do one of the things that clients do."""
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.plain, 6), (self.streamed, 6), (self.left, 3), (self.cut, 3), (self.wrong, 3), (self.late, 2),
        ]  # fmt: skip
        kind = self.chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        await kind()
        self.done[kind.__name__] += 1

    async def plain(self) -> None:
        """A plain request."""
        index = self.chance.randrange(len(self.questions))
        self._compare(index, await self._answer(self.questions[index]))

    async def streamed(self) -> None:
        """The same as a stream, read to its end."""
        index = self.chance.randrange(len(self.questions))
        question = self.questions[index]
        texts: dict[int, str] = {}
        finished: Counter[int] = Counter()
        lines = [line async for line in self._lines(question)]
        if not lines or lines[-1] != "data: [DONE]":
            raise SoakFailed(f"A stream of {question.body} ended with {lines[-1:]}.")
        for line in lines[:-1]:
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                text = choice["text"] if question.path == COMPLETIONS else choice["delta"].get("content") or ""
                texts[choice["index"]] = texts.get(choice["index"], "") + text
                finished[choice["index"]] += choice["finish_reason"] is not None
        if set(finished.values()) != {1}:
            raise SoakFailed(f"Choices of {question.body} ended {dict(finished)} times.")
        self._compare(index, _joined(texts))

    async def left(self) -> None:
        """A stream whose client leaves in the middle."""
        wanted = self.chance.randrange(12)
        stream = self._lines(self.chance.choice(self.questions))
        async for _ in stream:
            wanted -= 1
            if wanted < 0:
                break
        await stream.aclose()

    async def cut(self) -> None:
        """A plain request whose connection is cut before it is answered."""
        question = self.chance.choice(self.questions)
        asking = asyncio.ensure_future(self.client.post(question.path, json=question.body))
        await asyncio.sleep(self.chance.random() * 0.2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async def wrong(self) -> None:
        """A body that must be refused, with the reason."""
        path, body, parameter = self.chance.choice(WRONG)
        response = await self.client.post(path, content=body)
        error = response.json().get("error", {})
        if response.status_code != 400 or error.get("param") != parameter or not error.get("message"):
            raise SoakFailed(f"{path} {body[:100]!r} was answered with {response.status_code} {response.text[:300]}.")

    async def late(self) -> None:
        """A request that gives itself too little time, or just enough."""
        index = self.chance.randrange(len(self.questions))
        question = self.questions[index]
        body = {**question.body, "timeout": self.chance.choice([0.001, 0.05, 0.3, 60])}
        response = await self.client.post(question.path, json=body)
        if response.status_code == 200:
            self._compare(index, _text(question, response.json()))
        elif response.status_code != 408:
            raise SoakFailed(f"{body} was answered with {response.status_code} {response.text[:300]}.")

    async def _answer(self, question: Question) -> str:
        response = await self.client.post(question.path, json=question.body)
        if response.status_code != 200:
            raise SoakFailed(f"{question.body} was answered with {response.status_code} {response.text[:300]}.")
        return _text(question, response.json())

    async def _lines(self, question: Question) -> AsyncGenerator[str, None]:
        body = {**question.body, "stream": True}
        async with self.client.stream("POST", question.path, json=body) as response:
            if response.status_code != 200:
                raise SoakFailed(f"{body} was answered with {response.status_code}.")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield line

    def _compare(self, index: int, answer: str) -> None:
        if answer != self.alone[index]:
            raise SoakFailed(f"{self.questions[index]} answers {answer!r}, and {self.alone[index]!r} when asked alone.")


def make_questions(chance: random.Random, number: int) -> list[Question]:
    """Return greedy and seeded questions, short and long, of one choice or several."""
    questions = []
    for seed in range(number):
        text = "".join(chance.choice("abcdefgh ") for _ in range(chance.choice([1, 5, 30, 200])))
        body: dict[str, Any] = {"max_tokens": chance.choice([1, 3, 12, 40]), "ignore_eos": True}
        body |= {"temperature": 0} if seed % 2 else {"temperature": 0.9, "top_p": 0.9, "seed": seed}
        body |= {"n": chance.choice([2, 3])} if seed % 5 == 0 else {}
        body |= {"stop": ["a"]} if seed % 7 == 0 else {}
        if seed % 3:
            questions.append(Question(COMPLETIONS, {**body, "prompt": text}))
        else:
            questions.append(Question(CHAT, {**body, "messages": [{"role": "user", "content": text}]}))
    return questions


def served(model: str) -> AbstractContextManager[RunningServer]:
    """Start a server as the soak wants it, for as long as the block lasts."""
    port = free_port()
    command = [sys.executable, "-m", "pageport", "serve", "--model", model, "--port", str(port), *OPTIONS]
    return serving(command, port, environment=ENVIRONMENT)


async def soak(url: str, pid: int, *, requests: int, concurrency: int, seed: int) -> Outcome:
    """Run ``requests`` at ``concurrency`` against the server ``pid`` at ``url``.

    Raises:
        SoakFailed: something was wrong.
    """
    chance = random.Random(seed)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        run = Soak(client, chance, make_questions(chance, 40))
        await run.prepare()
        left = iter(range(requests))
        memory_after: dict[int, float] = {}

        async def work() -> None:
            for number in left:
                if number == int(requests * WARM_UP):
                    memory_after[number] = _memory_mb(pid)
                await run.ask()

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(work())
        await _require_idle(client)
        ((number, before),) = memory_after.items()
        growth = (_memory_mb(pid) - before) / (requests - number) * 1000
        if requests >= 1000 and growth > GROWTH_MB_PER_1000:
            raise SoakFailed(f"Memory grew by {growth:.2f} MB per 1,000 requests.")
    return Outcome(run.done, growth)


async def _require_idle(client: httpx.AsyncClient, timeout_s: float = 30) -> None:
    """Wait until nothing runs or waits and no block is held."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = (await client.get("/engine")).json()
        held = sum(group["used"] + group["shared"] for group in state["blocks"])
        if not state["running"] + state["waiting"] + held:
            return
        if time.monotonic() > deadline:
            raise SoakFailed(f"{held} blocks are held by nobody; {state['running']} requests run.")
        await asyncio.sleep(0.05)


def _memory_mb(pid: int) -> float:
    """The server's and its engine's own memory."""
    return memory_mb(all_descendants(pid), "VmRSS")


def _text(question: Question, answer: Mapping[str, Any]) -> str:
    is_completion = question.path == COMPLETIONS
    return _joined({c["index"]: c["text"] if is_completion else c["message"]["content"] for c in answer["choices"]})


def _joined(texts: Mapping[int, str]) -> str:
    return "\n".join(texts[index] for index in sorted(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with served(arguments.model) as server:
        started = time.perf_counter()
        sizes = {"requests": arguments.requests, "concurrency": arguments.concurrency, "seed": arguments.seed}
        outcome = asyncio.run(soak(server.url, server.pid, **sizes))
    print(f"{arguments.requests} requests in {time.perf_counter() - started:.0f} s: {dict(outcome.done)}")
    print(f"Memory grew by {outcome.growth_mb_per_1000:.2f} MB per 1,000 requests.")


if __name__ == "__main__":
    main()
