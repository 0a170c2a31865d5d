"""How many prompt tokens a step may compute, and how prompts share them."""

from collections.abc import Sequence

# Observations lose this share of their weight with each new one: about 40 steps are remembered.
_DECAY = 0.975
# A step makes at least this much progress with prompts, whatever the time limit says.
MIN_PREFILL_TOKENS = 16


class StepTimeModel:
    """Running estimate of step time as ``fixed + tokens * per_token``: exponentially weighted least squares."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one step."""
        milliseconds = seconds * 1000
        self._weight = self._weight * _DECAY + 1
        self._x = self._x * _DECAY + num_tokens
        self._y = self._y * _DECAY + milliseconds
        self._xx = self._xx * _DECAY + num_tokens * num_tokens
        self._xy = self._xy * _DECAY + num_tokens * milliseconds

    def tokens_within(self, limit_ms: float) -> int | None:
        """Return how many tokens a step of ``limit_ms`` milliseconds computes; None before anything is known."""
        if not self._weight or not self._y:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        covariance = self._xy / self._weight - mean_x * mean_y
        per_token = covariance / variance if variance > 1e-9 * mean_x * mean_x else 0.0
        fixed = mean_y - per_token * mean_x
        if per_token <= 0 or fixed < 0:
            # Steps of one size, or noise: assume time in proportion to tokens.
            per_token, fixed = mean_y / mean_x, 0.0
        return max(0, int((limit_ms - fixed) / per_token + 1e-6))


def first_share(remaining: int, budget: int) -> int:
    """Return what one prompt may take of ``budget`` while others could start: at most half."""
    return min(remaining, -(-budget // 2))


def share_out(remaining: Sequence[int], budget: int) -> list[int]:
    """Divide ``budget`` tokens among prompts that have ``remaining`` tokens to compute.

    In order, each gets at most half of what is left, so that a long one leaves room for short ones behind it. What is
    over completes the ones that lack least.
    """
    shares = []
    for wanted in remaining:
        share = first_share(wanted, budget)
        shares.append(share)
        budget -= share
    for i in sorted(range(len(shares)), key=lambda i: remaining[i] - shares[i]):
        extra = min(remaining[i] - shares[i], budget)
        shares[i] += extra
        budget -= extra
    return shares
