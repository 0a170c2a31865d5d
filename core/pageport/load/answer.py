"""``Answer``: what came back for one request, and when."""

from dataclasses import dataclass, field


class BadAnswer(Exception):
    """The server refused a request, or its answer is not what was asked for; ``kind`` is what it is counted as."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class Answer:
    """One request whose stream was read to its end; times are those of ``time.perf_counter``."""

    wanted_tokens: int
    sent_at: float
    chunk_times: list[float] = field(default_factory=list)  # of the chunks that carry tokens
    # As the server's usage says.
    num_tokens: int | None = None
    num_prompt_tokens: int | None = None
    finished_at: float = 0.0

    @property
    def tokens(self) -> int:
        return self.num_tokens if self.num_tokens is not None else len(self.chunk_times)

    @property
    def first_token_ms(self) -> float:
        return (self.chunk_times[0] - self.sent_at) * 1e3

    @property
    def between_chunks_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    @property
    def ms_per_token(self) -> float:
        """The time of a token after the first."""
        return (self.chunk_times[-1] - self.chunk_times[0]) * 1e3 / max(1, self.tokens - 1)

    @property
    def whole_ms(self) -> float:
        """From the request to the end of its stream."""
        return (self.finished_at - self.sent_at) * 1e3
