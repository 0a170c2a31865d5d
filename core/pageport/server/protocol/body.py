"""``RequestBody``: what every JSON body has in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class RequestBody(BaseModel):
    """A body. Fields that it does not name are kept apart: ``Service`` decides what becomes of them."""

    model_config = ConfigDict(extra="allow")

    model: Annotated[str | None, Field(description="Absent or null: the model served.")] = None
