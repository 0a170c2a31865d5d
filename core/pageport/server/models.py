"""``/v1/models``."""

from fastapi import APIRouter, Request

from pageport.server.errors import UnknownModel
from pageport.server.protocol.models import ModelCard, ModelList
from pageport.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List what is served here."""
    return ModelList(object="list", data=[_card(service_of(request))])


# Hub ids hold slashes.
@router.get("/v1/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> ModelCard:
    """Describe one model."""
    service = service_of(request)
    if model_id != service.model_name:
        raise UnknownModel(model_id, service.model_name)
    return _card(service)


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_name,
        object="model",
        created=service.created,
        owned_by="pageport",
        root=service.model_name,
        parent=None,
        max_model_len=service.engine.info.max_model_len,
    )
