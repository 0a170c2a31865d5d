"""``open_stream``: one HTTP request and the lines of its answer as they come."""

import asyncio
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

# One line of an event stream may hold the logprobs of many tokens.
LINE_LIMIT = 1 << 22


@dataclass(frozen=True)
class LineStream:
    """An answer: its status, and its body line by line."""

    status: int
    lines: AsyncIterator[bytes]

    async def text(self) -> str:
        """Read what is left."""
        return b"\n".join([line async for line in self.lines]).decode(errors="replace")


@asynccontextmanager
async def open_stream(
    url: str, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> AsyncIterator[LineStream]:
    """Send a request on a connection of its own, which ends with the block.

    Raises:
        OSError: nobody answers there.
        EOFError, ValueError: what answers does not speak HTTP.
    """
    parts = urllib.parse.urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    fields = {
        "Host": parts.netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **(headers or {}),
    }
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    reader, writer = await asyncio.open_connection(
        parts.hostname, port, limit=LINE_LIMIT, ssl=ssl.create_default_context() if is_tls else None
    )
    try:
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
        await writer.drain()
        status, answered = await _read_head(reader)
        is_chunked = answered.get("transfer-encoding", "").lower() == "chunked"
        yield LineStream(status, _lines(_chunks(reader) if is_chunked else _raw(reader)))
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    protocol, _, status = first.partition(" ")
    if not protocol.startswith("HTTP/"):
        raise ValueError(f"no HTTP answer: {first[:80]!r}")
    return int(status.split()[0]), headers


async def _raw(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(1 << 16):
        yield data


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Undo HTTP's chunked transfer coding."""
    while True:
        line = await reader.readline()
        if not line:
            raise EOFError("the connection was closed in the middle of the answer")
        size = int(line.split(b";")[0], 16)
        if not size:
            return
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
    if rest:
        yield rest
