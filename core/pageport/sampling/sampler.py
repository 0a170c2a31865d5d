"""``sample``: from logits to one token a row."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from pageport.backend.choice import Choice
from pageport.backend.reference.choose import choose_tokens
from pageport.sampling.batch import SamplingBatch
from pageport.sampling.edits import EditError
from pageport.sampling.logprobs import LogprobTensors, raw_logprobs
from pageport.sampling.penalties import apply_penalties

# ``Device.sample`` or what it inherits.
Choose = Callable[[Tensor, SamplingBatch], Choice]
# ``Device.fetch``.
Fetch = Callable[[Sequence[Tensor]], Callable[[], list[Tensor]]]

_NOT_FINITE = "The model's logits are not finite numbers. Try --dtype float32 or check the weights."
_ALL_MASKED = (
    "No token can be sampled: allowed_token_ids, bad_words, min_tokens, logits_processors or the structured output "
    "exclude all."
)


@dataclass(frozen=True, kw_only=True)
class SamplerOutput:
    """What was sampled, on the device until it is fetched. A row with an error has some token, not to be shown."""

    token_ids: Int64[Tensor, "rows"]
    # The largest logit of each row, as the model gave it and as the requests' own edits left it, where there are any.
    peaks: Float[Tensor, "rows"]
    edited_peaks: Float32[Tensor, "rows"] | None = None
    processor_errors: Mapping[int, str] = field(default_factory=dict)
    logprobs: tuple[LogprobTensors, ...] = ()

    def start_fetching(self, fetch: Fetch) -> Callable[[], "SamplerOutput"]:
        """Start to copy everything to the host; what is returned waits for it and returns it."""
        edited = [] if self.edited_peaks is None else [self.edited_peaks]
        scored = [part for group in self.logprobs for part in group.tensors]
        wait = fetch([self.token_ids, self.peaks, *edited, *scored])

        def fetched() -> SamplerOutput:
            here = iter(wait())
            return replace(
                self,
                token_ids=next(here),
                peaks=next(here),
                edited_peaks=next(here) if edited else None,
                logprobs=tuple(group.with_tensors(next(here), next(here), next(here)) for group in self.logprobs),
            )

        return fetched

    def errors(self) -> dict[int, str]:
        """Wait for the device and return why rows are unusable."""
        errors = {} if self.edited_peaks is None else dict.fromkeys(_not_finite(self.edited_peaks), _ALL_MASKED)
        errors |= dict.fromkeys(_not_finite(self.peaks), _NOT_FINITE)
        return errors | dict(self.processor_errors)


def sample(logits: Float[Tensor, "rows vocab"], batch: SamplingBatch, choose: Choose = choose_tokens) -> SamplerOutput:
    """Choose a token a row, in the order ``SamplingParams`` gives; ``logits`` are left as they are.

    Every operation works on rows alone, so that a row's result is bitwise the same in any batch.
    """
    snapshots = raw_logprobs(logits, batch)
    if not batch.changes_logits:
        token_ids, peaks = choose(logits, batch)
        edited_peaks, processor_errors = None, {}
    else:
        peaks = logits.amax(dim=-1)
        logits = logits.to(torch.float32, copy=True)
        processor_errors = _apply_edits(logits, batch)
        apply_penalties(logits, batch)
        token_ids, edited_peaks = choose(logits, batch)
    return SamplerOutput(
        token_ids=token_ids,
        peaks=peaks,
        edited_peaks=edited_peaks,
        processor_errors=processor_errors,
        logprobs=tuple(snapshot.of_chosen(token_ids) for snapshot in snapshots),
    )


def _not_finite(peaks: Float[Tensor, "rows"]) -> list[int]:
    return [row for row, peak in enumerate(peaks.tolist()) if not math.isfinite(peak)]


def _apply_edits(logits: Float32[Tensor, "rows vocab"], batch: SamplingBatch) -> dict[int, str]:
    errors = {}
    for row, edits, history_row, num_prompt_tokens, length in batch.edited_rows:
        try:
            edits.apply(logits[row], batch.history[history_row, num_prompt_tokens:length])
        except EditError as error:
            errors[row] = str(error)
    return errors
