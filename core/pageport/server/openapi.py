"""The published schema. Bodies are read by ``Service.read``, so FastAPI has to be told of them."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

SCHEMAS = "#/components/schemas/{model}"
# What a route that streams on request answers with besides its JSON.
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


def documents_body(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's description that says its body is ``kind``."""
    schema = {"$ref": SCHEMAS.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def publish_bodies(app: FastAPI, kinds: list[type[BaseModel]]) -> None:
    """Add ``kinds``, and what they consist of, to the schemas that ``app`` publishes."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            _, definitions = models_json_schema([(kind, "validation") for kind in kinds], ref_template=SCHEMAS)
            schema.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the schema
