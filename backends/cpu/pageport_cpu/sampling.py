"""Choosing tokens, on the native device."""

import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.reference.choose import choose_tokens
from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, Real, pointer
from pageport_cpu.rows import row_stride

# Logarithms in float64, whoever computes them, agree to some 1e-15; scores lie between -4 and 23.
SCORE_MARGIN = 1e-12
# The reference's probabilities are float32, each good to this.
PROBABILITY_MARGIN = 2.0**-20
# What its sum over the vocabulary, eight lanes side by side, may be off by, for each token.
SUM_MARGIN = 2.0**-24 / 8
# Ids up to here are whole numbers in float32.
MAX_VOCAB_SIZE = 2**24


class SampleArguments(Arguments):
    kernel = "sample"
    _fields_ = (
        ("logits", Pointer),
        ("temperatures", Pointer),
        ("top_k", Pointer),
        ("top_p", Pointer),
        ("log_min_p", Pointer),
        ("seeds", Pointer),
        ("positions", Pointer),
        ("token_ids", Pointer),
        ("peaks", Pointer),
        ("undecided", Pointer),
        ("rows", Integer),
        ("vocab", Integer),
        ("logits_stride", Integer),
        ("dtype", Integer),
        ("score_margin", Real),
        ("mass_margin", Real),
    )


def sample(library: Library, logits: Tensor, batch: ChoiceBatch) -> Choice:
    """Choose the tokens that the reference chooses.

    The kernel leaves rows open in which a rounding decides (some in ten thousand with top_p, hardly any without): the
    reference chooses for these.
    """
    rows, vocab_size = logits.shape
    assert 0 < vocab_size < MAX_VOCAB_SIZE, f"{vocab_size} tokens are not supported"
    is_random = bool(batch.plain_rows.size or batch.filtered_rows.size)
    # By name, so that they outlive the call. A row without temperature looks at nothing else.
    parameters: list[Tensor | None] = [batch.temperatures.contiguous(), *[None] * 5]
    if is_random:
        filters = (batch.top_k, batch.top_p, torch.log(batch.min_p))
        parameters[1:] = [values.contiguous() for values in (*filters, batch.seeds, batch.positions)]
    choice = Choice(torch.empty(rows, dtype=torch.int64), torch.empty(rows))
    undecided = torch.empty(rows, dtype=torch.uint8)
    library.run(
        SampleArguments(
            pointer(logits),
            *map(pointer, parameters),
            pointer(choice.token_ids),
            pointer(choice.peaks),
            pointer(undecided),
            rows,
            vocab_size,
            row_stride(logits),
            DTYPE_CODES[logits.dtype],
            SCORE_MARGIN,
            PROBABILITY_MARGIN + SUM_MARGIN * vocab_size,
        )
    )
    if is_random and undecided.any():
        open_rows = undecided.nonzero().flatten()
        choice.token_ids[open_rows] = choose_tokens(logits[open_rows], batch.select(open_rows)).token_ids
    return choice
