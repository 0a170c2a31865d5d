"""``LLM``: offline inference in this process, with the names of vLLM's class."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from pageport.config import EngineConfig
from pageport.engine.environment import prepare_environment
from pageport.engine.input_processor import InputProcessor
from pageport.engine.messages import EngineInfo, EngineRequest, EngineStats
from pageport.engine.output_processor import OutputProcessor
from pageport.engine.outputs import ChoiceDelta, RequestOutput
from pageport.engine.progress import progress_bar
from pageport.errors import InvalidParameter, PageportError
from pageport.models.resolve import resolve_model
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.sampling.pooling import Pooling, embedding
from pageport.scheduling.request import FinishReason
from pageport.text.chat import ChatTemplate
from pageport.text.tokenizer import Tokenizer, load_tokenizer

Prompt = str | list[int] | Mapping[str, Any]
Message = Mapping[str, Any]


class LLM:
    """A model, loaded once, that answers lists of prompts.

    Keyword arguments are the settings of ``pageport.config`` by their names (``max_model_len``, ``dtype``, …). A
    context manager; ``close`` gives the memory back. ``info`` tells context length, cache size, backend and so on.
    """

    info: EngineInfo

    def __init__(self, model: str = "smollm2", **settings: Any) -> None:
        config = EngineConfig.from_flat(model=model, **settings)
        prepare_environment(config.backend.backend)
        from pageport.engine.builder import build_engine  # torch is loaded only now

        with progress_bar("Loading the model") as report:
            self._built = build_engine(config, report)
        self._engine = self._built.engine
        home = config.model.tokenizer or resolve_model(
            config.model.model, config.model.revision, allow_pickle=config.model.allow_pickle
        )
        self._tokenizer = load_tokenizer(Path(home))
        self.info = self._built.info.with_end_tokens(self._tokenizer.eos_token_ids)
        self._inputs = InputProcessor(self._tokenizer, self.info, config.backend.seed)
        self._outputs = OutputProcessor(self._tokenizer)
        self._ids = itertools.count()
        self._closed = False

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    def stats(self) -> EngineStats:
        """Counters since the start."""
        return self._engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts, all batched together; results come in the order of the prompts.

        Args:
            prompts: text, token ids, or ``{"prompt": …}`` / ``{"prompt_token_ids": …}``; one or a list.
            sampling_params: one for all, or one for each.
            use_tqdm: show a progress bar.

        Raises:
            RequestError: a prompt or parameter is impossible; nothing was run.
        """
        listed = _prompt_list(prompts)
        params = _params_list(sampling_params or self.get_default_sampling_params(), len(listed))
        return self._run(listed, params, use_tqdm=use_tqdm, priority=priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template."""
        conversations = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        prompts: list[Prompt] = [
            self._render(cast(Sequence[Message], c), chat_template, options) for c in conversations
        ]
        params = _params_list(sampling_params or SamplingParams(max_tokens=None), len(prompts))
        return self._run(prompts, params, use_tqdm=use_tqdm, priority=None)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        dimensions: int | None = None,
        normalize: bool = True,
    ) -> list[list[float]]:
        """Return an embedding of each prompt, out of the model's last layer.

        Args:
            pooling: the mean over all positions, or the last one.
            dimensions: keep so many of the first ones.
            normalize: divide by the Euclidean length.

        Raises:
            RequestError: a prompt is impossible; nothing was run. Or the model has fewer dimensions.
        """
        listed = _prompt_list(prompts)
        params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, pooling=pooling)
        outputs = self._run(listed, [params] * len(listed), use_tqdm=False, priority=None)
        errors = [output.error for output in outputs if output.error is not None]
        if errors:
            raise PageportError(errors[0])
        return [
            embedding(
                output.pooled or (), pooling, len(output.prompt_token_ids), dimensions=dimensions, normalizes=normalize
            )
            for output in outputs
        ]

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[RequestOutput]:
        """Search with beams; each result's outputs are the beams, best first."""
        listed = _prompt_list(prompts)
        return self._run(listed, [params] * len(listed), use_tqdm=False, priority=None)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[ChoiceDelta]:
        """Complete one prompt and yield what is new after every step; leaving the loop aborts it."""
        request_id = str(next(self._ids))
        params = sampling_params or self.get_default_sampling_params()
        request = self._inputs.process(prompt, params, request_id=request_id)
        self._check_grammars([request])
        self._add(request, prompt)
        try:
            while not self._outputs.is_finished(request_id):
                yield from self._step()
        finally:
            self._engine.abort(request_id)
            self._outputs.forget(request_id)

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[ChoiceDelta]:
        """Answer one conversation, like ``stream``."""
        prompt = self._render(messages, None, {"add_generation_prompt": True})
        return self.stream(prompt, sampling_params or SamplingParams(max_tokens=None))

    def close(self) -> None:
        """Give the model's and the cache's memory back; further calls are errors."""
        if not self._closed:
            self._closed = True
            self._built.close()
            del self._built, self._engine

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams | BeamSearchParams],
        *,
        use_tqdm: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        priorities = priority or [0] * len(prompts)
        requests = [
            self._inputs.process(prompt, p, request_id=str(next(self._ids)), priority=level)
            for prompt, p, level in zip(prompts, params, priorities, strict=True)
        ]
        self._check_grammars(requests)
        ids = [request.request_id for request in requests]
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                self._add(request, prompt)
            with progress_bar("Generating", is_wanted=use_tqdm) as report:
                while (finished := sum(self._outputs.is_finished(i) for i in ids)) < len(ids):
                    report(finished, len(ids))
                    self._step()
            return [self._outputs.snapshot(i) for i in ids]
        finally:
            for request_id in ids:
                self._engine.abort(request_id)
                self._outputs.forget(request_id)

    def _add(self, request: EngineRequest, prompt: Prompt) -> None:
        self._outputs.add(request, _text(prompt))
        self._engine.add(request)

    def _check_grammars(self, requests: Sequence[EngineRequest]) -> None:
        """Compile what the requests want of their outputs, before any of them runs."""
        for structured in dict.fromkeys(request.sampling.structured for request in requests):
            if structured is not None:
                self._engine.compile(structured)

    def _step(self) -> list[ChoiceDelta]:
        step = self._engine.step()
        for error in step.refused.values():
            raise error
        deltas = self._outputs.process(step.outputs)
        for request_id, index in self._outputs.take_aborts():
            self._engine.abort(request_id, index, FinishReason.STOP)
        return deltas

    def _render(self, messages: Sequence[Message], source: str | None, options: Mapping[str, Any]) -> list[int]:
        """Encode a conversation; the template writes the special tokens itself."""
        template = ChatTemplate(source or self._tokenizer.chat_template, self._tokenizer)
        return template.encode(messages, **options)


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast(list[int], list(prompts))]
    return cast(list[Prompt], list(prompts))


def _params_list(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidParameter(
            f"There are {count} prompts but {len(params)} sampling_params. Give one for all, or one for each.",
            parameter="sampling_params",
        )
    return list(params)


def _text(prompt: Prompt) -> str | None:
    if isinstance(prompt, str):
        return prompt
    return prompt.get("prompt") if isinstance(prompt, Mapping) else None
