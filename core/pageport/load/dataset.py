"""``make_prompts``: what to ask, from a seed or from a file."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.errors import ConfigurationError
from pageport.load.config import DatasetConfig

# The ids below are special tokens of many models.
FIRST_TOKEN_ID = 100
# Random words are made of these: some model's tokens for each, and no language's words.
SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "zu")


@dataclass(frozen=True, kw_only=True)
class LoadPrompt:
    """One request: a text, token ids or a conversation, and how many tokens to ask for."""

    prompt: str | list[int] | None = None
    messages: Sequence[dict[str, Any]] | None = None
    max_tokens: int


def make_prompts(config: DatasetConfig) -> list[LoadPrompt]:
    """Return ``num_prompts`` requests; a shorter file is begun again.

    Raises:
        ConfigurationError: the file cannot be read, or holds nothing of its form.
    """
    chance = random.Random(config.seed)
    if config.dataset in ("words", "tokens"):
        return _random_prompts(config, chance)
    assert config.dataset_path is not None
    path = Path(config.dataset_path)
    read = _read_json_lines if config.dataset == "jsonl" else _read_sharegpt
    try:
        prompts = list(read(path, config.output_len))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--dataset-path {path} cannot be read: {error}.") from error
    if not prompts:
        raise ConfigurationError(f"--dataset-path {path} holds no request.")
    if config.dataset == "sharegpt":
        chance.shuffle(prompts)
    return [prompts[index % len(prompts)] for index in range(config.num_prompts)]


def _random_prompts(config: DatasetConfig, chance: random.Random) -> list[LoadPrompt]:
    def length(mean: int) -> int:
        spread = int(mean * config.range_ratio)
        return max(1, chance.randint(mean - spread, mean + spread))

    def token_ids(count: int) -> list[int]:
        return [chance.randrange(FIRST_TOKEN_ID, config.vocab_size) for _ in range(count)]

    def words(count: int) -> list[str]:
        return ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(count)]

    prompts = []
    token_prefix = token_ids(config.prefix_len) if config.dataset == "tokens" else []
    word_prefix = words(config.prefix_len) if config.dataset == "words" else []
    for _ in range(config.num_prompts):
        input_len, output_len = length(config.input_len), length(config.output_len)
        if config.dataset == "tokens":
            prompts.append(LoadPrompt(prompt=token_prefix + token_ids(input_len), max_tokens=output_len))
        else:
            prompts.append(LoadPrompt(prompt=" ".join(word_prefix + words(input_len)), max_tokens=output_len))
    return prompts


def _read_json_lines(path: Path, output_len: int) -> Iterator[LoadPrompt]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(fields, dict) or ("prompt" in fields) == ("messages" in fields):
            raise ValueError(f"line {number} needs either prompt or messages")
        yield LoadPrompt(
            prompt=fields.get("prompt"),
            messages=fields.get("messages"),
            max_tokens=fields.get("max_tokens") or output_len,
        )


def _read_sharegpt(path: Path, output_len: int) -> Iterator[LoadPrompt]:
    """Yield the first message of each conversation: ``[{"conversations": [{"from", "value"}, …]}, …]``."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(entries, list):
        raise ValueError("it is no list of conversations")
    for entry in entries:
        turns = entry.get("conversations") or [] if isinstance(entry, dict) else []
        text = next((turn.get("value") for turn in turns if turn.get("from") in ("human", "user")), None)
        if text:
            yield LoadPrompt(prompt=text, max_tokens=output_len)
