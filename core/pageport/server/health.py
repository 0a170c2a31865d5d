"""Routes for probes and scrapers: ``/health``, ``/ready``, ``/metrics``, ``/version``."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from pageport import __version__
from pageport.server.service import Service, service_of

router = APIRouter()

METRICS_TYPES = ("text/plain", "application/openmetrics-text")


class Status(BaseModel):
    """One word: probes carry no key, so they learn nothing else."""

    status: Literal["ok", "dead", "stalled", "draining"]


class Version(BaseModel):
    version: str


UNHEALTHY: dict[int | str, dict[str, Any]] = {503: {"model": Status, "description": "Not now."}}


@router.get("/health", responses=UNHEALTHY)
@router.head("/health", include_in_schema=False)
async def health(request: Request, response: Response) -> Status:
    """Say whether the engine works: 503 when it is dead, or has work and makes no progress."""
    return _tell(_health(service_of(request)), response)


@router.get("/ready", responses=UNHEALTHY)
@router.head("/ready", include_in_schema=False)
async def ready(request: Request, response: Response) -> Status:
    """Say whether new requests are served: 503 when ``/health`` is, and from the signal to stop on."""
    service = service_of(request)
    return _tell(Status(status="draining") if service.drain.has_begun else _health(service), response)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {kind: {"schema": {"type": "string"}} for kind in METRICS_TYPES}}},
)
async def metrics(request: Request) -> Response:
    """Expose the metrics in the format that the scraper asks for."""
    body, content_type = service_of(request).metrics.render(request.headers.get("accept", ""))
    return Response(body, media_type=content_type)


@router.get("/version")
async def version() -> Version:
    """Say which pageport this is."""
    return Version(version=__version__)


def _tell(status: Status, response: Response) -> Status:
    response.status_code = 200 if status.status == "ok" else 503
    return status


def _health(service: Service) -> Status:
    if service.engine.error is not None:
        return Status(status="dead")
    if service.engine.is_stalled(service.config.stall_timeout):
        return Status(status="stalled")
    return Status(status="ok")
