"""``WasteMeter``: the share of KV memory that is allocated but stores no token, averaged over steps."""


def waste_ratio(tokens_stored: int, num_slots: int) -> float:
    """Return 1 − tokens stored / slots allocated; 0 while nothing is allocated."""
    return 1 - tokens_stored / num_slots if num_slots else 0.0


class WasteMeter:
    """Mean of the waste ratio over the steps in which something was allocated."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def record(self, tokens_stored: int, num_slots: int) -> None:
        if num_slots:
            self._sum += waste_ratio(tokens_stored, num_slots)
            self._count += 1

    @property
    def average(self) -> float:
        return self._sum / self._count if self._count else 0.0
