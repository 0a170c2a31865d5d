"""``Pooling``: how the hidden states of a prompt become one vector. No torch here: the server process imports it."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from pageport.errors import InvalidParameter

# mean: of all positions; last: of the last one.
Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def embedding(
    pooled: Sequence[float],
    pooling: Pooling,
    num_tokens: int,
    *,
    dimensions: int | None = None,
    normalizes: bool = True,
) -> list[float]:
    """Turn what the engine sums up of a prompt into its embedding.

    Args:
        pooled: [hidden], the sum over the positions that ``pooling`` takes.
        num_tokens: of the prompt.
        dimensions: keep so many of the first ones.
        normalizes: divide by the Euclidean length; a vector of zeros stays one.

    Raises:
        InvalidParameter: there are fewer dimensions.
    """
    if dimensions is not None and not 1 <= dimensions <= len(pooled):
        raise InvalidParameter(f"dimensions is {dimensions}; this model's embeddings have {len(pooled)}.", "dimensions")
    count = num_tokens if pooling == "mean" else 1
    vector = [value / count for value in pooled[:dimensions]]
    length = math.sqrt(math.fsum(value * value for value in vector)) if normalizes else 1.0
    return [value / length for value in vector] if length else vector
