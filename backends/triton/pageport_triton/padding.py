"""``clear_padding``: tokens of a step that belong to no request."""

from jaxtyping import Float
from torch import Tensor

from pageport.backend.batch import AttentionBatch


def clear_padding(batch: AttentionBatch, out: Float[Tensor, "tokens heads value_head_size"]) -> None:
    """Zero the attention of tokens behind the last request: nobody's program writes to them, and NaN may lie there.

    A captured step has none, and no mirror: each of its tokens is a request's.
    """
    starts = batch.host.query_start_loc
    if starts.size and starts[-1] < batch.num_tokens:
        out[int(starts[-1]) :].zero_()
