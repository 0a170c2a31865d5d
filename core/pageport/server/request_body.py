"""``read_body``: the bytes that a client sends, up to a limit."""

from fastapi import Request
from starlette.exceptions import HTTPException


class BodyTooLong(HTTPException):
    """More bytes than allowed: HTTP 413. The rest is not read, so the connection cannot be used again."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            413,
            f"The request body has more than {max_bytes} bytes, which is all that this server takes. Send less, or "
            "raise --max-body-bytes.",
            {"Connection": "close"},
        )


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLong: it is longer, as soon as that is known: from its declared length, or from what has come.
        ClientDisconnect: the client left before it was complete.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise BodyTooLong(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise BodyTooLong(max_bytes)
    return bytes(body)
