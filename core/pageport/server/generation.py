"""``Generation``: the engine requests of one HTTP request, from checked to finished."""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from pageport.engine.messages import EngineRequest
from pageport.engine.outputs import ChoiceDelta
from pageport.errors import InvalidParameter, PageportError
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.server.errors import DeadlineExceeded, GenerationFailed
from pageport.server.protocol.common import GenerationFields, PromptTokensDetails, Usage
from pageport.server.request_record import GenerationRecord, current_record
from pageport.server.service import Service


class PromptDeltas(NamedTuple):
    """What is new of one prompt's choices."""

    prompt_index: int
    deltas: list[ChoiceDelta]


# Deltas of any prompt; the failure of one; None when one has ended.
Arrivals = asyncio.Queue[PromptDeltas | Exception | None]


class Generation:
    """Prompts times n choices; choice ``prompt * n + j`` is the j-th of its prompt.

    Construction checks every prompt and starts none.

    Raises:
        RequestError: a prompt or a parameter is impossible; nothing was run.
    """

    def __init__(
        self,
        service: Service,
        id_prefix: str,
        body: GenerationFields,
        prompts: Sequence[str | list[int]],
        params: SamplingParams | BeamSearchParams,
        *,
        add_special_tokens: bool,
        discards_output: bool = False,
    ) -> None:
        """Check the prompts; ``discards_output`` when only what is known of the prompts is wanted."""
        self.id = f"{id_prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = service.model_name
        self.num_choices = body.num_choices  # per prompt
        self._service = service
        self._discards_output = discards_output
        self._started = time.perf_counter()
        self._timeout_s = body.timeout
        self._shows_counts = body.stream_options is not None and bool(body.stream_options.continuous_usage_stats)
        if len(prompts) * self.num_choices > service.config.max_choices:
            raise InvalidParameter(
                f"{len(prompts)} prompts with n {self.num_choices} make {len(prompts) * self.num_choices} choices; "
                f"a request may ask for {service.config.max_choices}. Send several requests.",
                "prompt" if len(prompts) > 1 else "n",
            )
        self.requests: list[EngineRequest] = [
            service.engine.prepare(
                prompt,
                params,
                request_id=f"{self.id}-{index}",
                priority=body.priority or 0,
                timeout_s=body.timeout,
                cache_salt=body.cache_salt,
                add_special_tokens=add_special_tokens,
            )
            for index, prompt in enumerate(prompts)
        ]
        self._num_prompt_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        self.num_generated_tokens = 0
        self._choice_tokens: Counter[int] = Counter()
        self._num_cached_tokens: int | None = None
        self._record = self._new_record(body, prompts)

    def usage(self) -> Usage:
        """Count the tokens so far."""
        usage = Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self.num_generated_tokens,
            total_tokens=self._num_prompt_tokens + self.num_generated_tokens,
        )
        if self._num_cached_tokens is not None:
            usage.prompt_tokens_details = PromptTokensDetails(cached_tokens=self._num_cached_tokens)
        return usage

    async def deltas(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Run all prompts and yield what is new, with ``index`` counted over all of them.

        Closing the generator aborts what still runs.

        Raises:
            EngineOverloaded, EngineDead: nothing more will come.
            DeadlineExceeded: its time was over.
            GenerationFailed: the engine gave up on a choice.
        """
        record = current_record.get()
        if record is not None:
            record.generation = self._record
        last_token_at: dict[int, float] = {}
        waiting = {index: len(request.prompt_token_ids) for index, request in enumerate(self.requests)}
        ticket = self._service.admission.admit(self._num_prompt_tokens)
        try:
            async with aclosing(self._merged()) as merged:
                while (arrived := await self._in_time(merged)) is not None:
                    ticket.release(waiting.pop(arrived.prompt_index, 0))
                    for deltas in self._parted(arrived.deltas):
                        for delta in deltas:
                            self._raise_failure(delta)
                            delta.index += arrived.prompt_index * self.num_choices
                            if self._discards_output:
                                _discard_output(delta)
                            self._count(delta, last_token_at)
                        yield deltas
            self._record.is_finished = True
        except PageportError as error:
            self._record.error = str(error)
            raise
        finally:
            ticket.release()
            self._record.num_generated_tokens = self.num_generated_tokens
            self._record.longest_choice_tokens = max(self._choice_tokens.values(), default=0)
            self._record.num_cached_tokens = self._num_cached_tokens
            self._record.last_token_at = max(last_token_at.values(), default=None)

    def _new_record(self, body: GenerationFields, prompts: Sequence[str | list[int]]) -> GenerationRecord:
        first = self.requests[0]
        return GenerationRecord(
            response_id=self.id,
            model=self.model,
            started=self._started,
            num_choices=self.num_choices,
            max_tokens=first.max_tokens,
            seed=body.seed,
            temperature=first.sampling.temperature,
            top_p=first.sampling.top_p,
            prompts=prompts,
            num_prompt_tokens=self._num_prompt_tokens,
        )

    def _parted(self, deltas: list[ChoiceDelta]) -> list[list[ChoiceDelta]]:
        """Part what came together: before a failure, which ends all, and wherever counts are shown in between."""
        if self._shows_counts:
            return [[delta] for delta in deltas]
        for place, delta in enumerate(deltas):
            if place and (delta.error is not None or delta.finish_reason == "timeout"):
                return [deltas[:place], deltas[place:]]
        return [deltas]

    async def _in_time(self, merged: AsyncGenerator[PromptDeltas, None]) -> PromptDeltas | None:
        """Return what comes next; None: that was all.

        The engine ends a request whose time is over too, but one that hangs cannot.
        """
        if self._timeout_s is None:
            return await anext(merged, None)
        try:
            async with asyncio.timeout(self._started + self._timeout_s - time.perf_counter()):
                return await anext(merged, None)
        except TimeoutError:
            raise self._deadline_exceeded() from None

    def _raise_failure(self, delta: ChoiceDelta) -> None:
        if delta.error is not None:
            raise GenerationFailed(delta.error)
        if delta.finish_reason == "timeout":
            raise self._deadline_exceeded()

    def _deadline_exceeded(self) -> DeadlineExceeded:
        asked = "" if self._timeout_s is None else f" of {self._timeout_s:g} seconds"
        return DeadlineExceeded(
            f"The request was given up after its time{asked}, with {self.num_generated_tokens} tokens generated. "
            "Allow more time, or ask for fewer tokens."
        )

    def _count(self, delta: ChoiceDelta, last_token_at: dict[int, float]) -> None:
        if delta.num_cached_tokens is not None:
            self._num_cached_tokens = (self._num_cached_tokens or 0) + delta.num_cached_tokens
        if delta.queued_s is not None:
            before_s = self._record.queued_s
            self._record.queued_s = delta.queued_s if before_s is None else min(before_s, delta.queued_s)
        if delta.finish_reason is not None:
            self._record.finish_reasons[delta.index] = delta.finish_reason
        num_tokens = len(delta.token_ids)
        if not num_tokens:
            return
        self.num_generated_tokens += num_tokens
        self._choice_tokens[delta.index] += num_tokens
        now = time.perf_counter()
        before = last_token_at.get(delta.index)
        last_token_at[delta.index] = now
        if before is None:
            if self._record.first_token_at is None:
                self._record.first_token_at = now
            self._service.metrics.time_to_first_token.observe(now - self._started)
            return
        for _ in range(num_tokens):
            self._service.metrics.inter_token_latency.observe((now - before) / num_tokens)

    async def _merged(self) -> AsyncGenerator[PromptDeltas, None]:
        """Run the prompts side by side; the first failure ends all."""
        if len(self.requests) == 1:
            async with aclosing(self._service.engine.stream(self.requests[0])) as stream:
                async for deltas in stream:
                    yield PromptDeltas(0, deltas)
            return
        arrived: Arrivals = asyncio.Queue(maxsize=1)
        tasks = [asyncio.create_task(self._run(index, request, arrived)) for index, request in enumerate(self.requests)]
        num_running = len(tasks)
        try:
            while num_running:
                item = await arrived.get()
                if item is None:
                    num_running -= 1
                elif isinstance(item, PromptDeltas):
                    yield item
                else:
                    raise item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, index: int, request: EngineRequest, arrived: Arrivals) -> None:
        try:
            async with aclosing(self._service.engine.stream(request)) as stream:
                async for deltas in stream:
                    await arrived.put(PromptDeltas(index, deltas))
        except Exception as error:
            await arrived.put(error)
        else:
            await arrived.put(None)


def _discard_output(delta: ChoiceDelta) -> None:
    delta.text = ""
    delta.token_ids = []
    delta.logprobs = None
    delta.stop_reason = None
    if delta.finish_reason is not None:
        delta.finish_reason = "length"
