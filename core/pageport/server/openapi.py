"""The published schema: bodies, which FastAPI has to be told of since ``Service.read`` reads them, and errors."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pageport.server.protocol.errors import ErrorResponse
from pageport.server.request_ids import HEADER

SCHEMAS = "#/components/schemas/{model}"
# One event of a stream: OpenAPI 3.1 has the schema of an event stream describe each event.
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "description": "JSON: a part of the answer, or an error; `[DONE]` ends some streams.",
        },
        "event": {"type": "string", "description": "What kind of part it is, where there are several."},
    },
}
# What a route that streams on request answers with besides its JSON.
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}

REQUEST_ID_HEADER = {
    "description": "The request's own, or a new one: what the server's log calls the request.",
    "required": True,
    "schema": {"type": "string"},
}
RETRY_AFTER_HEADER = {
    "description": "Seconds after which to ask again, with 429 and 503.",
    "schema": {"type": "integer", "minimum": 0},
}
# Any route may answer so, whatever else it says: middleware does too.
FAILURES = {
    "4XX": "The request cannot be served as it is: 400 a value, 401 no valid key, 404 no such thing, 408 its time is "
    "over, 413 too long, 429 too many at once.",
    "5XX": "The server cannot serve the request now: 503 come again, 500 its log says why.",
}


def documents_body(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's description that says its body is ``kind``."""
    schema = {"$ref": SCHEMAS.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def publish_bodies(app: FastAPI, kinds: list[type[BaseModel]]) -> None:
    """Add ``kinds``, and what they consist of, to the schemas that ``app`` publishes, and errors to all its routes."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            published: list[type[BaseModel]] = [*kinds, ErrorResponse]
            _, definitions = models_json_schema([(kind, "validation") for kind in published], ref_template=SCHEMAS)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            for operations in schema["paths"].values():
                for operation in operations.values():
                    _describe_failures(operation["responses"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the schema


def _describe_failures(responses: dict[str, Any]) -> None:
    # FastAPI's own answer to wrong arguments is never given: it is a 400 here.
    responses.pop("422", None)
    body = {"application/json": {"schema": {"$ref": SCHEMAS.format(model=ErrorResponse.__name__)}}}
    for status, description in FAILURES.items():
        responses[status] = {
            "description": description,
            "content": body,
            "headers": {"Retry-After": RETRY_AFTER_HEADER},
        }
    for response in responses.values():
        response.setdefault("headers", {})[HEADER] = REQUEST_ID_HEADER
