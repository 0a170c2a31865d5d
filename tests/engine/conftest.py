"""Tiny models on disk, and the demo model where `make setup` put it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pageport.engine.llm import LLM
from pageport.testing.scripted_model import NUM_POSITIONS, write_scripted_model
from pageport.testing.tiny_model import write_tiny_gpt2, write_tiny_llama

# Small enough that a test's engine starts in milliseconds; the same numbers on every machine.
SMALL = {
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_kv_blocks": 256,
    "max_model_len": 256,
}


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-mistral", sliding_window=16)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("models") / "tiny-gpt2")


@pytest.fixture
def open_llm() -> Iterator[Callable[..., LLM]]:
    """Open small engines that are closed when the test ends."""
    opened: list[LLM] = []

    def open_one(model: Path | str, **settings: Any) -> LLM:
        opened.append(LLM(str(model), **{**SMALL, **settings}))
        return opened[-1]

    yield open_one
    for llm in opened:
        llm.close()


@pytest.fixture
def open_scripted(open_llm: Callable[..., LLM], tmp_path: Path) -> Callable[..., LLM]:
    """Open engines of models that say what they are told."""

    def open_one(tokens: Sequence[bytes | str], *, num_prompt_tokens: int = 1, **settings: Any) -> LLM:
        folder = write_scripted_model(tmp_path / "scripted", tokens, num_prompt_tokens=num_prompt_tokens)
        return open_llm(folder, **{"max_model_len": NUM_POSITIONS, **settings})

    return open_one
