"""``RowSampling``: what the sampler must know of one sequence; ``NewRow.sampling`` carries it. No torch here."""

from dataclasses import dataclass

from pageport.sampling.grammar import Grammar
from pageport.sampling.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class RowSampling:
    """Checked parameters, with everything textual already turned into token ids.

    With ``num_candidates`` (beam search) the row is greedy whatever its temperature, and its logprobs are those of
    the ``num_candidates`` most likely tokens.
    """

    params: SamplingParams
    seed: int  # of the request; a child of n mixes its index in
    stop_token_ids: frozenset[int] = frozenset()  # masked until min_tokens are out
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    num_candidates: int = 0
    grammar: Grammar | None = None  # of ``params.structured``
