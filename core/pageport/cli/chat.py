"""``pageport chat``: a conversation in the terminal."""

from collections.abc import Mapping
from typing import Any

from pageport.engine.llm import LLM
from pageport.errors import RequestError
from pageport.sampling.params import SamplingParams


def chat(system: str | None, params: SamplingParams, settings: Mapping[str, Any]) -> None:
    """Read lines and stream answers until end of input, ``/exit``; ``/clear`` starts over."""
    start = [{"role": "system", "content": system}] if system else []
    messages: list[dict[str, str]] = list(start)
    with LLM(**settings) as llm:
        print(f"{llm.info.model_name} on {llm.info.backend}. /clear starts over, /exit or Ctrl-D ends.")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if line == "/exit":
                return
            if line == "/clear":
                messages = list(start)
                continue
            if line:
                messages.append({"role": "user", "content": line})
                _answer(llm, messages, params)


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> None:
    """Stream one answer and keep it; Ctrl-C ends the answer, not the chat."""
    text = ""
    try:
        for delta in llm.stream_chat(messages, params):
            print(delta.text, end="", flush=True)
            text += delta.text
    except KeyboardInterrupt:
        pass
    except RequestError as error:
        print(error)
        messages.pop()
        return
    print()
    messages.append({"role": "assistant", "content": text})
