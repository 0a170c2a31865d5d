"""``EngineRun``: pageport's engine over a model of transformers, turned by hand: tokens in, tokens out."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from state_checkpoint import StateCheckpoint
from torch import Tensor

from pageport.backend.discovery import discover, select
from pageport.config import EngineConfig
from pageport.engine.builder import OpenModel, build_engine_on
from pageport.engine.messages import EngineRequest
from pageport.models.registry import decoder_spec
from pageport.sampling.params import SamplingParams


class Job(NamedTuple):
    """One request: it ends after exactly so many tokens."""

    prompt: list[int]
    num_tokens: int


class EngineRun:
    """An engine on a device of its own; a context manager."""

    def __init__(self, model: Any, backend: str, **settings: Any) -> None:
        """Open the backend's first device and load the model's weights.

        Args:
            settings: of ``pageport.config``.
        """
        checkpoint = StateCheckpoint(model)
        spec = decoder_spec(checkpoint.config, checkpoint.names())
        config = EngineConfig.from_flat(model="in-memory", backend=backend, **settings)
        self.device = select(discover(), backend).backend().open(0, {})
        self._waited_s = 0.0
        self._count_waits()
        self._built = build_engine_on(self.device, OpenModel(checkpoint, spec), config, backend_name=backend)
        self.engine = self._built.engine
        self._num_started = 0

    def __enter__(self) -> "EngineRun":
        return self

    def __exit__(self, *_error: object) -> None:
        self._built.close()

    @property
    def waited_s(self) -> float:
        """Seconds that the host has waited for tokens: what is left of a step's time is the host's own."""
        return self._waited_s

    def run(self, jobs: Sequence[Job], on_step: Callable[[int], None] = lambda num_tokens: None) -> list[list[int]]:
        """Run all jobs to their ends and return their tokens.

        Args:
            on_step: called after each step with the number of tokens it brought.
        """
        first = self._num_started
        self._num_started += len(jobs)
        for number, job in enumerate(jobs, first):
            params = SamplingParams(temperature=0, max_tokens=job.num_tokens, ignore_eos=True)
            self.engine.add(
                EngineRequest(
                    request_id=str(number),
                    prompt_token_ids=job.prompt,
                    sampling=params,
                    max_tokens=job.num_tokens,
                    seed=0,
                )
            )
        tokens: dict[str, list[int]] = {str(number): [] for number in range(first, self._num_started)}
        while self.engine.has_work:
            outputs = self.engine.step().outputs
            for output in outputs:
                if output.error:
                    raise RuntimeError(output.error)
                tokens[output.request_id] += output.token_ids
            on_step(sum(len(output.token_ids) for output in outputs))
        return list(tokens.values())

    def _count_waits(self) -> None:
        fetch = self.device.fetch

        def counting(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
            wait = fetch(tensors)

            def counted() -> list[Tensor]:
                start = time.perf_counter()
                copies = wait()
                self._waited_s += time.perf_counter() - start
                return copies

            return counted

        setattr(self.device, "fetch", counting)  # noqa: B010 - a method is replaced
