"""Seeds of a request's choices."""


def child_seed(seed: int, index: int) -> int:
    """Return the seed, below 2⁶⁴, of choice ``index`` of a request; choice 0 has the request's own.

    The mix is splitmix64's (Steele, Lea, Flood, OOPSLA 2014).
    """
    mask = 2**64 - 1
    if index == 0:
        return seed & mask
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
