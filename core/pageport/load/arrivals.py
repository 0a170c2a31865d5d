"""``arrival_times``: when requests come."""

import math
import random


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Return the seconds after the start at which ``count`` requests come, ``rate`` of them a second.

    Intervals follow a gamma distribution of the shape ``burstiness``: at 1 it is the exponential one of a Poisson
    process, below 1 requests come in bursts. At the rate inf all come at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    chance = random.Random(f"arrivals {seed}")
    times, now = [], 0.0
    for _ in range(count):
        now += chance.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(now)
    return times
