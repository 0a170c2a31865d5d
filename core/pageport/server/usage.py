"""``UsageReports``: which chunks of a stream carry token counts."""

from typing import Protocol

from pageport.errors import InvalidParameter
from pageport.server.generation import Generation
from pageport.server.protocol.common import GenerationFields, StreamOptions, Usage


class HasUsage(Protocol):
    usage: Usage | None


class UsageReports:
    """``stream_options`` of one request.

    Raises:
        InvalidParameter: options for a stream that is none.
    """

    def __init__(self, body: GenerationFields) -> None:
        if body.stream_options is not None and not body.stream:
            raise InvalidParameter(
                "stream_options only mean something in a stream. Set stream, or leave them out.", "stream_options"
            )
        options = body.stream_options or StreamOptions()
        self.in_last_chunk = bool(options.include_usage)
        self._in_every_chunk = self.in_last_chunk and bool(options.continuous_usage_stats)

    def attach(self, chunk: HasUsage, generation: Generation) -> None:
        """Give a chunk that is not the last its ``usage``: the counts so far, null, or no such field."""
        if self._in_every_chunk:
            chunk.usage = generation.usage()
        elif self.in_last_chunk:
            chunk.usage = None
