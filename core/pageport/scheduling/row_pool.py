"""``RowPool``: the runner's persistent rows, free, taken or claimed for siblings that are about to be forked."""


class RowPool:
    """A stack of free rows. A claim keeps rows back without saying which."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows - 1, -1, -1))
        self._claims: dict[str, int] = {}
        self._num_claimed = 0

    @property
    def num_available(self) -> int:
        """Rows that are neither taken nor claimed."""
        return len(self._free) - self._num_claimed

    def claim(self, request_id: str, count: int) -> None:
        """Keep ``count`` rows back for a request."""
        if count:
            self._claims[request_id] = count
            self._num_claimed += count

    def drop_claim(self, request_id: str) -> None:
        """Give up what a request still claims; nothing may be claimed."""
        self._num_claimed -= self._claims.pop(request_id, 0)

    def take(self) -> int:
        """Take an available row."""
        assert self.num_available > 0, "no row is available"
        return self._free.pop()

    def take_claimed(self, request_id: str) -> int | None:
        """Take one of the rows a request claims; None when it claims none (any more)."""
        count = self._claims.get(request_id, 0)
        if count == 0:
            return None
        self._claims[request_id] = count - 1
        self._num_claimed -= 1
        return self._free.pop()

    def give(self, row: int) -> None:
        """Return a taken row."""
        self._free.append(row)

    def claimants(self) -> list[str]:
        """Return the requests that claim rows."""
        return [request_id for request_id, count in self._claims.items() if count]

    def check(self, taken: list[int]) -> None:
        """Prove that ``taken`` are the rows that are not free."""
        assert sorted(self._free + taken) == list(range(self.num_rows)), "a row is lost or taken twice"
        assert self._num_claimed == sum(self._claims.values())
        assert 0 <= self._num_claimed <= len(self._free), "more rows are claimed than are free"
