"""``EngineDrive``: an ``LLM``'s engine, turned by hand."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from pageport import LLM, RequestOutput, SamplingParams
from pageport.engine.messages import EngineRequest, EngineStats
from pageport.engine.outputs import ChoiceDelta
from pageport.scheduling.request import FinishReason


class EngineDrive:
    """Adds requests, steps and aborts one by one."""

    def __init__(self, llm: LLM) -> None:
        self._engine, self._inputs, self._outputs = llm._engine, llm._inputs, llm._outputs
        self._ids = map(str, count())

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats()

    def prepare(self, prompt: str | list[int], params: Any, **options: Any) -> EngineRequest:
        return self._inputs.process(prompt, params, **options)

    def start(self, request: EngineRequest) -> str:
        self._outputs.add(request)
        self._engine.add(request)
        return request.request_id

    def add(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_keys: Mapping[str, str] | None = None,
    ) -> str:
        """Start a request; ``cache_keys`` are the tagged keys that adapters and images will give its blocks."""
        request = self.prepare(prompt, params, request_id=next(self._ids), priority=priority)
        return self.start(replace(request, cache_keys=cache_keys or {}))

    def step(self) -> list[ChoiceDelta]:
        step = self._engine.step()
        for error in step.refused.values():
            raise error
        deltas = self._outputs.process(step.outputs)
        for request_id, index in self._outputs.take_aborts():
            self._engine.abort(request_id, index, FinishReason.STOP)
        self._engine.check()
        return deltas

    def is_finished(self, request_id: str) -> bool:
        return self._outputs.is_finished(request_id)

    def finish(self, *request_ids: str) -> list[RequestOutput]:
        """Step until these have ended, and return and forget them."""
        while not all(map(self.is_finished, request_ids)):
            self.step()
        outputs = [self._outputs.snapshot(request_id) for request_id in request_ids]
        for request_id in request_ids:
            self.forget(request_id)
        return outputs

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._engine.check()

    def forget(self, request_id: str) -> None:
        self._outputs.forget(request_id)

    def require_idle(self) -> None:
        """Prove that nothing runs, waits or holds a block."""
        self._engine.check()
        stats = self.stats
        assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)
