"""``/v1/embeddings``: requests, responses."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StrictInt

from pageport.sampling.pooling import Pooling
from pageport.server.protocol.body import RequestBody
from pageport.server.protocol.common import MAX_CACHE_SALT_CHARACTERS
from pageport.server.protocol.completions import one_by_one

TokenIds = Annotated[list[StrictInt], Field(min_length=1)]
Input = str | TokenIds | Annotated[list[str], Field(min_length=1)] | Annotated[list[TokenIds], Field(min_length=1)]


class EmbeddingRequest(RequestBody):
    """Body of ``POST /v1/embeddings``."""

    input: Input
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int | None, Field(ge=1, description="Keep so many of the first ones.")] = None

    pooling: Annotated[
        Pooling | None, Field(description="Of the last layer: the mean of all positions (default), or the last one.")
    ] = None
    normalize: Annotated[bool | None, Field(description="Divide by the Euclidean length; default true.")] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1)] = None
    add_special_tokens: bool | None = None
    timeout: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    priority: int | None = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARACTERS)] = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs one by one."""
        return one_by_one(self.input)


class Embedding(BaseModel):
    """``embedding`` as numbers, or as little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
