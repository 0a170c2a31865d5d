"""``TinyEngine``: the real engine over a tiny random model, on any device; ``Answer``: what it said to one sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pageport.backend.device import Device
from pageport.config import EngineConfig
from pageport.engine.builder import build_engine_on, open_model
from pageport.engine.messages import EngineRequest, EngineStats, SequenceOutput
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import LogitsProcessor, SamplingParams
from pageport.scheduling.batch import TokenLogprobs
from pageport.testing.tiny_model import VOCAB_SIZE, write_tiny_gpt2, write_tiny_llama

# Every step gives some sequence a token or a chunk; an engine that needs more than this turns in circles.
MAX_STEPS = 5000


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """Which model to write: two layers, random weights. ``nan_token`` has NaN as its embedding."""

    architecture: Literal["llama", "gpt2"] = "llama"
    head_size: int = 8
    max_positions: int = 256
    sliding_window: int | None = None
    nan_token: int | None = None

    def write(self, folder: Path) -> None:
        if self.architecture == "gpt2":
            width = 4 * self.head_size
            write_tiny_gpt2(folder, n_embd=width, n_inner=4 * width, n_positions=self.max_positions)
        else:
            overrides: dict[str, Any] = {"head_dim": self.head_size, "max_position_embeddings": self.max_positions}
            if self.sliding_window is not None:
                overrides["sliding_window"] = self.sliding_window
            write_tiny_llama(folder, **overrides)
        if self.nan_token is not None:
            tensors = load_file(folder / "model.safetensors")
            tensors["model.embed_tokens.weight"][self.nan_token] = torch.nan
            # Its logit is then 0, never the largest: only who sends it reads it.
            tensors["lm_head.weight"][self.nan_token] = 0
            save_file(tensors, folder / "model.safetensors")


@dataclass(kw_only=True)
class Answer:
    """One sequence's tokens, with the log-probability of every token of the vocabulary at each of them."""

    prompt: Sequence[int]
    is_greedy: bool = True
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)  # each [vocab], float32
    finish_reason: str | None = None
    error: str | None = None
    cumulative_logprob: float | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[Tensor] = field(default_factory=list)  # of what follows each prompt token but the last

    def extend(self, output: SequenceOutput) -> None:
        """Add what one step brought."""
        self.tokens += output.token_ids
        self.logprobs += [by_token(entry) for entry in output.logprobs or ()]
        self.prompt_logprobs += [by_token(entry) for entry in output.prompt_logprobs or () if entry is not None]
        self.finish_reason = output.finish_reason or self.finish_reason
        self.error = output.error or self.error
        self.cumulative_logprob = output.cumulative_logprob
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens or 0)


Answers = dict[tuple[str, int], Answer]  # by request id and choice


class TinyEngine:
    """A small engine on a device that stays its owner's; a context manager."""

    def __init__(self, device: Device, model: TinyModel, *, block_size: int, **settings: Any) -> None:
        """Write, load and forget the model.

        Args:
            settings: of ``pageport.config`` that differ from: 8 sequences, 64 tokens a step, 64 blocks, no prefix
                caching.
        """
        small: dict[str, Any] = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "num_kv_blocks": 64,
            "max_model_len": model.max_positions,
            "enable_prefix_caching": False,
        }
        with TemporaryDirectory(prefix="pageport-conformance-") as folder:
            model.write(Path(folder))
            config = EngineConfig.from_flat(model=folder, block_size=block_size, **{**small, **settings})
            built = build_engine_on(device, open_model(config.model), config, backend_name="under test")
        self.engine = built.engine
        self.answers: Answers = {}

    def __enter__(self) -> "TinyEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the cache back; the device stays open."""
        self.engine.close()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def add(self, *requests: EngineRequest) -> None:
        """Queue requests; what is said to them is collected in ``answers``."""
        for request in requests:
            self.engine.add(request)
            for choice in range(request.num_choices):
                self.answers[request.request_id, choice] = Answer(
                    prompt=request.prompt_token_ids, is_greedy=request.sampling.temperature == 0
                )

    def run(self, *requests: EngineRequest, before_step: Callable[[int], None] = lambda step: None) -> Answers:
        """Run these requests, and what was added before, to their ends.

        Args:
            before_step: called before each step with its number, from 0.
        """
        self.add(*requests)
        for step in range(MAX_STEPS):
            if not self.engine.has_work:
                return self.answers
            before_step(step)
            self.step()
        raise AssertionError(f"the engine still has work after {MAX_STEPS} steps: it makes no progress")

    def step(self) -> None:
        for output in self.engine.step().outputs:
            self.answers[output.request_id, output.index].extend(output)


def request(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    prompt_logprobs: int | None = None,
    processor: LogitsProcessor | None = None,
) -> EngineRequest:
    """Return a request that never stops early and tells the log-probability of every token."""
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(
            n=n,
            temperature=temperature,
            logprobs=None if processor else -1,
            prompt_logprobs=prompt_logprobs,
            logits_processors=[processor] if processor else None,
        ),
        max_tokens=max_tokens,
        seed=seed,
    )


def beam_request(request_id: str, prompt: Sequence[int], *, width: int, max_tokens: int) -> EngineRequest:
    """Return a beam search that never stops early."""
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(n=width, temperature=0.0),
        max_tokens=max_tokens,
        seed=0,
        beam=BeamSearchParams(beam_width=width, max_tokens=max_tokens, ignore_eos=True),
    )


def by_token(entry: TokenLogprobs) -> Tensor:
    """Return log-probabilities in the order of token ids, float32 [vocab]."""
    logprobs = torch.full((VOCAB_SIZE,), torch.nan)
    logprobs[entry.token_ids] = torch.tensor(entry.logprobs)
    return logprobs
