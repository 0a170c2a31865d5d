"""The body of every answer that is not a success."""

from pydantic import BaseModel


class ErrorDetails(BaseModel):
    """``message`` is a sentence for people, ``code`` a word for programs; ``param`` names the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    error: ErrorDetails
