"""``create_app``: the HTTP application around an engine."""

import time

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from pageport import __version__
from pageport.engine.async_engine import AsyncEngine
from pageport.server import chat, completions, embeddings, health, models, page, responses, tokenize
from pageport.server.access_log import AccessLog
from pageport.server.admission import Admission
from pageport.server.api_keys import read_api_keys
from pageport.server.auth import ApiKeys
from pageport.server.client_limit import ClientLimit
from pageport.server.config import ServerConfig
from pageport.server.drain import DrainGate
from pageport.server.errors import install_error_handlers
from pageport.server.metrics import Metrics
from pageport.server.openapi import publish_bodies
from pageport.server.protocol.chat import ChatRequest
from pageport.server.protocol.completions import CompletionRequest
from pageport.server.protocol.embeddings import EmbeddingRequest
from pageport.server.protocol.responses import ResponseRequest
from pageport.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from pageport.server.request_ids import HEADER, RequestIds
from pageport.server.request_record import RecordRequests
from pageport.server.response_store import ResponseStore
from pageport.server.service import Service
from pageport.server.tracing import open_tracing


def create_app(engine: AsyncEngine, config: ServerConfig) -> FastAPI:
    """Build the application. ``engine`` is ready, and its caller's to close."""
    app = FastAPI(title="pageport", version=__version__, redirect_slashes=False)
    metrics = Metrics(engine)
    service = app.state.service = Service(
        engine=engine,
        config=config,
        metrics=metrics,
        created=int(time.time()),
        admission=Admission(config.max_queued_tokens),
        responses=ResponseStore(max_responses=config.max_stored_responses, max_bytes=config.max_stored_response_bytes),
        tracing=open_tracing(config),
    )
    for routes in (completions, chat, responses, embeddings, models, tokenize, health, page):
        app.include_router(routes.router)
    publish_bodies(
        app, [CompletionRequest, ChatRequest, ResponseRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest]
    )
    install_error_handlers(app)
    # What is added last sees a request first: a refused one is counted, and a browser may read why it was refused.
    if config.max_requests_per_client is not None:
        app.add_middleware(ClientLimit, max_requests=config.max_requests_per_client)
    keys = read_api_keys(config)
    if keys:
        app.add_middleware(ApiKeys, keys=keys)
    app.add_middleware(DrainGate, drain=service.drain)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[HEADER, "Retry-After"],
        )
    observers = [metrics.observe]
    if not config.disable_log_requests:
        observers.append(AccessLog(shows_prompts=config.log_prompts).observe)
    if service.tracing is not None:
        observers.append(service.tracing.observe)
    app.add_middleware(RecordRequests, observers=observers)
    app.add_middleware(RequestIds)
    return app
