"""A LangChain model that runs in this process: ``PageportLLM(model="smollm2").invoke("Once upon a time")``.

Needs ``pip install langchain-core``. For a server, no code is needed:
``langchain_openai.ChatOpenAI(base_url="http://localhost:8000/v1", api_key="none", model="smollm2")``.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.llms import BaseLLM
from langchain_core.outputs import Generation, GenerationChunk, LLMResult
from pydantic import ConfigDict, Field, PrivateAttr

from pageport import LLM, CompletionOutput, SamplingParams


class PageportLLM(BaseLLM):
    """Completes prompts, all those of one call batched together. ``engine_settings`` are those of ``pageport.LLM``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str = "smollm2"
    sampling: SamplingParams = SamplingParams(max_tokens=256)
    engine_settings: dict[str, Any] = Field(default_factory=dict)
    _engine: LLM = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Load the model."""
        self._engine = LLM(self.model, **self.engine_settings)

    def close(self) -> None:
        """Give the model's memory back."""
        self._engine.close()

    @property
    def _llm_type(self) -> str:
        return "pageport"

    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        outputs = self._engine.generate(prompts, self._params(stop, kwargs), use_tqdm=False)
        num_tokens = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
        num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
        return LLMResult(
            generations=[_generations(output.outputs) for output in outputs],
            llm_output={"token_usage": {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}},
        )

    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        for delta in self._engine.stream(prompt, self._params(stop, kwargs)):
            if run_manager is not None:
                run_manager.on_llm_new_token(delta.text)
            yield GenerationChunk(text=delta.text)

    def _params(self, stop: list[str] | None, given: dict[str, Any]) -> SamplingParams:
        changes = given if stop is None else {**given, "stop": stop}
        return replace(self.sampling, **changes) if changes else self.sampling


def _generations(choices: Sequence[CompletionOutput]) -> list[Generation]:
    return [Generation(text=choice.text, generation_info={"finish_reason": choice.finish_reason}) for choice in choices]


if __name__ == "__main__":
    llm = PageportLLM(model=sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    for piece in llm.stream("Once upon a time", max_tokens=40):
        print(piece, end="", flush=True)
    print()
    llm.close()
