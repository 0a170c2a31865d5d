"""``Admission``: how many prompt tokens may wait for their first answer."""

from pageport.errors import EngineOverloaded


class Admission:
    """Counts prompt tokens from the request to its first output, in whatever queue they are meanwhile."""

    def __init__(self, max_queued_tokens: int | None) -> None:
        """Start with nothing; None: no bound."""
        self._limit = max_queued_tokens
        self.num_queued_tokens = 0

    def admit(self, num_tokens: int) -> "Ticket":
        """Let prompts of together ``num_tokens`` wait. However long, they may wait alone.

        Raises:
            EngineOverloaded: with those that wait already they are too many.
        """
        queued = self.num_queued_tokens
        if self._limit is not None and queued and queued + num_tokens > self._limit:
            raise EngineOverloaded(
                f"{queued} prompt tokens wait already; with the {num_tokens} of this request they would be more than "
                f"the {self._limit} that this server queues. Try again later."
            )
        self.num_queued_tokens += num_tokens
        return Ticket(self, num_tokens)


class Ticket:
    """What one request has in the queue."""

    def __init__(self, admission: Admission, num_tokens: int) -> None:
        self._admission = admission
        self._num_tokens = num_tokens

    def release(self, num_tokens: int | None = None) -> None:
        """Take ``num_tokens`` out of the queue, by default all that are left."""
        released = self._num_tokens if num_tokens is None else num_tokens
        self._num_tokens -= released
        self._admission.num_queued_tokens -= released
