"""Choose one token a row from logits that need no more editing."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch, Rows
from pageport.backend.reference.draw import Draws, Filters, draw_filtered, draw_plain

_ELEMENTS_PER_THREAD = 2**20


def choose_tokens(logits: Float[Tensor, "rows vocab"], batch: ChoiceBatch) -> Choice:
    """Take the likeliest token, the first of equals, or draw one.

    Every operation works on rows alone, so that a row's result is bitwise the same in any batch.
    """
    logits = logits.float()
    peaks, token_ids = logits.max(dim=-1)  # the first of equals; NaN if there is one
    for rows in _chunks(batch.plain_rows, logits):
        scaled = _scaled(logits, peaks, batch, rows)
        token_ids[rows] = draw_plain(scaled, token_ids[rows], Draws(batch.seeds[rows], batch.positions[rows]))
    for rows in _chunks(batch.filtered_rows, logits):
        token_ids[rows] = draw_filtered(
            _scaled(logits, peaks, batch, rows),
            Filters(batch.top_k[rows], batch.top_p[rows], batch.min_p[rows]),
            Draws(batch.seeds[rows], batch.positions[rows]),
        )
    return Choice(token_ids, peaks)


def _chunks(rows: Rows, logits: Tensor) -> Iterator[Int64[Tensor, "n"]]:
    """Split rows so that, in host memory, what is computed of them stays in the processor's caches."""
    fitting = _ELEMENTS_PER_THREAD * torch.get_num_threads() // logits.shape[1] if logits.is_cpu else len(rows)
    step = max(1, fitting)
    for start in range(0, len(rows), step):
        yield torch.from_numpy(rows[start : start + step]).to(logits.device)


def _scaled(logits: Tensor, peaks: Tensor, batch: ChoiceBatch, rows: Tensor) -> Float32[Tensor, "n vocab"]:
    """Subtract the largest logit before dividing, so that a tiny temperature overflows to -inf at worst."""
    return (logits[rows] - peaks[rows, None]).div_(batch.temperatures[rows, None])
