"""``sample``: from logits to one token a row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor

from pageport.sampling.batch import Rows, SamplingBatch
from pageport.sampling.draw import Draws, Filters, draw_filtered, draw_plain
from pageport.sampling.edits import LogitsProcessorError
from pageport.sampling.logprobs import LogprobTensors, raw_logprobs
from pageport.sampling.penalties import apply_penalties

_ELEMENTS_PER_THREAD = 2**20
_NOT_FINITE = "The model's logits are not finite numbers. Try --dtype float32 or check the weights."
_ALL_MASKED = "No token can be sampled: allowed_token_ids, bad_words, min_tokens or logits_processors exclude all."


@dataclass(frozen=True, kw_only=True)
class SamplerOutput:
    """What was sampled, on the device. A row with an error has token 0, which must not be shown."""

    token_ids: Int64[Tensor, "rows"]
    nan_rows: Bool[Tensor, "rows"]  # the model's logits hold NaN or infinity
    masked_rows: Bool[Tensor, "rows"]  # the request's own edits leave no token, or NaN
    processor_errors: Mapping[int, str] = field(default_factory=dict)
    logprobs: tuple[LogprobTensors, ...] = ()

    def errors(self) -> dict[int, str]:
        """Wait for the device and return why rows are unusable."""
        errors = dict.fromkeys(self.nan_rows.nonzero().flatten().tolist(), _NOT_FINITE)
        errors |= dict.fromkeys(self.masked_rows.nonzero().flatten().tolist(), _ALL_MASKED)
        return errors | dict(self.processor_errors)


def sample(logits: Float[Tensor, "rows vocab"], batch: SamplingBatch) -> SamplerOutput:
    """Choose a token a row, in the order ``SamplingParams`` gives; ``logits`` are left as they are.

    Every operation works on rows alone, so that a row's result is bitwise the same in any batch.
    """
    logits = logits.float()
    peaks, token_ids = logits.max(dim=-1)  # the first of equals; NaN if there is one
    nan_rows = ~torch.isfinite(peaks)
    masked_rows = torch.zeros_like(nan_rows)
    processor_errors: Mapping[int, str] = {}
    snapshots = raw_logprobs(logits, batch)
    if batch.changes_logits:
        logits = logits.clone()
        processor_errors = _apply_edits(logits, batch)
        apply_penalties(logits, batch)
        peaks, token_ids = logits.max(dim=-1)
        masked_rows = ~torch.isfinite(peaks) & ~nan_rows
    _draw_random_rows(token_ids, logits, peaks, batch)
    token_ids = token_ids.masked_fill(nan_rows | masked_rows, 0)
    return SamplerOutput(
        token_ids=token_ids,
        nan_rows=nan_rows,
        masked_rows=masked_rows,
        processor_errors=processor_errors,
        logprobs=tuple(snapshot.of_chosen(token_ids) for snapshot in snapshots),
    )


def _apply_edits(logits: Float32[Tensor, "rows vocab"], batch: SamplingBatch) -> dict[int, str]:
    errors = {}
    for row, edits, history_row, num_prompt_tokens, length in batch.edited_rows:
        try:
            edits.apply(logits[row], batch.history[history_row, num_prompt_tokens:length])
        except LogitsProcessorError as error:
            errors[row] = str(error)
    return errors


def _draw_random_rows(token_ids: Tensor, logits: Tensor, peaks: Tensor, batch: SamplingBatch) -> None:
    for rows in _chunks(batch.plain_rows, logits):
        scaled = _scaled(logits, peaks, batch, rows)
        token_ids[rows] = draw_plain(scaled, token_ids[rows], Draws(batch.seeds[rows], batch.positions[rows]))
    for rows in _chunks(batch.filtered_rows, logits):
        token_ids[rows] = draw_filtered(
            _scaled(logits, peaks, batch, rows),
            Filters(batch.top_k[rows], batch.top_p[rows], batch.min_p[rows]),
            Draws(batch.seeds[rows], batch.positions[rows]),
        )


def _chunks(rows: Rows, logits: Tensor) -> Iterator[Int64[Tensor, "n"]]:
    """Split rows so that, in host memory, what is computed of them stays in the processor's caches."""
    fitting = _ELEMENTS_PER_THREAD * torch.get_num_threads() // logits.shape[1] if logits.is_cpu else len(rows)
    step = max(1, fitting)
    for start in range(0, len(rows), step):
        yield torch.from_numpy(rows[start : start + step]).to(logits.device)


def _scaled(logits: Tensor, peaks: Tensor, batch: SamplingBatch, rows: Tensor) -> Float32[Tensor, "n vocab"]:
    """Subtract the largest logit before dividing, so that a tiny temperature overflows to -inf at worst."""
    return (logits[rows] - peaks[rows, None]).div_(batch.temperatures[rows, None])
