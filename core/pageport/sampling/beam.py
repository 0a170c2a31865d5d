"""``BeamSearchParams``: what beam search is asked for. No torch here."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """Beam search as transformers defines it.

    A finished hypothesis scores ``sum of logprobs / length ** length_penalty`` with the length in generated tokens.
    With ``early_stopping`` the search ends once ``beam_width`` hypotheses are finished; otherwise when no running
    beam can still beat the worst of them.
    """

    beam_width: int
    max_tokens: int
    num_return: int | None = None  # None: beam_width
    length_penalty: float = 1.0
    early_stopping: bool = False
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    temperature: float = 0.0
