"""Run ``sample`` on a few rows, each with its own parameters and tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from jaxtyping import install_import_hook

# Before anything here imports them: shapes in the signatures are checked.
TENSOR_MODULES = [
    *(f"pageport.sampling.{name}" for name in ("batch", "edits", "logprobs", "penalties", "rows", "sampler")),
    *(f"pageport.backend.reference.{name}" for name in ("choose", "draw", "philox", "ranking")),
]
install_import_hook(TENSOR_MODULES, "beartype.beartype")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from pageport.sampling.params import SamplingParams  # noqa: E402
from pageport.sampling.row import RowSampling  # noqa: E402
from pageport.sampling.rows import SamplingRows  # noqa: E402
from pageport.sampling.sampler import SamplerOutput, sample  # noqa: E402

Run = Callable[..., SamplerOutput]


def run_sampler(
    logits: Tensor,
    rows: Sequence[RowSampling | SamplingParams],
    prompts: Sequence[list[int]] | None = None,
    outputs: Sequence[list[int]] | None = None,
    indexes: Sequence[int] | None = None,
    at: Sequence[int] | None = None,  # the runner's rows
) -> SamplerOutput:
    prompts = prompts or [[0]] * len(rows)
    outputs = outputs or [[]] * len(rows)
    at = at or list(range(len(rows)))
    history = torch.full((max(at) + 1, 64), 2**31 - 1, dtype=torch.int32)  # what is not set must not be read
    sampling_rows = SamplingRows(max(at) + 1, logits.shape[1], torch.device("cpu"))
    for k, row in enumerate(at):
        given = rows[k]
        sampling = given if isinstance(given, RowSampling) else RowSampling(params=given, seed=given.seed or 0)
        sampling_rows.set_row(row, sampling, indexes[k] if indexes else 0, len(prompts[k]))
        tokens = prompts[k] + outputs[k]
        history[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    lengths = [len(prompt) + len(output) for prompt, output in zip(prompts, outputs, strict=True)]
    return sample(logits, sampling_rows.gather(at, lengths, history))


@pytest.fixture
def run() -> Run:
    return run_sampler


@pytest.fixture
def draw_many() -> Callable[..., Tensor]:
    """Sample one row of logits at output positions 0, 1, 2, …"""

    def draw(logits: Tensor, params: SamplingParams, count: int, index: int = 0) -> Tensor:
        rows = SamplingRows(1, len(logits), torch.device("cpu"))
        rows.set_row(0, RowSampling(params=params, seed=params.seed or 0), index, 1)
        batch = rows.gather([0] * count, range(1, count + 1), torch.zeros((1, 1), dtype=torch.int32))
        return sample(logits.expand(count, -1).contiguous(), batch).token_ids

    return draw


@pytest.fixture
def random_logits() -> Callable[..., Tensor]:
    def make(rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Any:
        return torch.randn((rows, vocab_size), generator=torch.Generator().manual_seed(seed)) * scale

    return make
