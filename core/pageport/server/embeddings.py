"""``POST /v1/embeddings``: one vector of each text, out of the model's last layer."""

import base64
import struct
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import Response

from pageport.errors import RequestError
from pageport.sampling.params import SamplingParams
from pageport.sampling.pooling import Pooling, embedding
from pageport.server.generation import Generation
from pageport.server.openapi import documents_body
from pageport.server.protocol.common import GenerationFields
from pageport.server.protocol.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse, EmbeddingUsage
from pageport.server.service import Service, service_of
from pageport.server.streaming import json_response, until_disconnected

router = APIRouter()


@router.post("/v1/embeddings", response_model=EmbeddingResponse, openapi_extra=documents_body(EmbeddingRequest))
async def create_embeddings(request: Request) -> Response:
    """Embed each input."""
    embeddings = await service_of(request).build(request, EmbeddingRequest, Embeddings)
    return json_response(await until_disconnected(request.receive, embeddings.response()))


class Embeddings:
    """One request of this endpoint, checked."""

    def __init__(self, service: Service, body: EmbeddingRequest) -> None:
        self._body = body
        self._pooling: Pooling = body.pooling or "mean"
        fields = GenerationFields(priority=body.priority, timeout=body.timeout, cache_salt=body.cache_salt)
        # The engine always generates; its token is dropped.
        params = SamplingParams(
            temperature=0,
            max_tokens=1,
            detokenize=False,
            pooling=self._pooling,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        try:
            self._generation = Generation(
                service, "embd", fields, body.inputs, params, add_special_tokens=body.add_special_tokens is not False
            )
        except RequestError as error:
            if error.parameter == "prompt":
                error.parameter = "input"
            raise

    async def response(self) -> EmbeddingResponse:
        """Wait for all inputs and answer with their embeddings."""
        pooled: dict[int, list[float]] = {}
        async with aclosing(self._generation.deltas()) as groups:
            async for deltas in groups:
                pooled |= {delta.index: delta.pooled for delta in deltas if delta.pooled is not None}
        num_tokens = [len(request.prompt_token_ids) for request in self._generation.requests]
        return EmbeddingResponse(
            object="list",
            data=[
                Embedding(object="embedding", index=index, embedding=self._written(pooled[index], num_tokens[index]))
                for index in range(len(num_tokens))
            ],
            model=self._generation.model,
            usage=EmbeddingUsage(prompt_tokens=sum(num_tokens), total_tokens=sum(num_tokens)),
        )

    def _written(self, pooled: list[float], num_tokens: int) -> list[float] | str:
        body = self._body
        vector = embedding(
            pooled,
            self._pooling,
            num_tokens,
            dimensions=body.dimensions,
            normalizes=body.normalize is not False,
        )
        if body.encoding_format != "base64":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
