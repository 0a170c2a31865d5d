"""``pageport generate``."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pageport.engine.llm import LLM, Prompt
from pageport.engine.outputs import RequestOutput
from pageport.errors import ConfigurationError
from pageport.sampling.params import SamplingParams


def generate(
    prompts: Sequence[str],
    params: SamplingParams,
    settings: Mapping[str, Any],
    *,
    prompts_file: str | None,
    json_output: bool,
) -> None:
    """Load the model, complete all prompts as one batch, print the results in order."""
    wanted: list[Prompt] = [*prompts, *(_read_prompts(Path(prompts_file)) if prompts_file else [])]
    if not wanted:
        wanted = [sys.stdin.read()]
    with LLM(**settings) as llm:
        single = len(wanted) == 1 and not json_output
        if single:
            for delta in llm.stream(wanted[0], params):
                print(delta.text, end="", flush=True)
            print()
            return
        for output in llm.generate(wanted, params):
            print(json.dumps(_as_json(output), ensure_ascii=False) if json_output else output.outputs[0].text)


def _read_prompts(path: Path) -> list[Prompt]:
    try:
        prompts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--prompts-file {path} cannot be read as JSON: {error}.") from error
    if not isinstance(prompts, list):
        raise ConfigurationError(f"--prompts-file {path} must hold a list of texts or of token-id lists.")
    return prompts


def _as_json(output: RequestOutput) -> dict[str, Any]:
    choice = output.outputs[0]
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
    }
