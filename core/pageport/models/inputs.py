"""``ModelInputs``: what one step feeds to a model besides its attention batches."""

from dataclasses import dataclass

from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """Token ids and positions of one ragged step.

    ``embeddings`` replace the rows ``embedding_rows`` of the token embedding; ``adapter_index`` picks an adapter a
    token. Both are reserved: no model reads them yet.
    """

    token_ids: Int64[Tensor, "tokens"]
    positions: Int64[Tensor, "tokens"]
    embeddings: Float[Tensor, "rows hidden"] | None = None
    embedding_rows: Int64[Tensor, "rows"] | None = None
    adapter_index: Int64[Tensor, "tokens"] | None = None
