"""``Objective``: a bound that a good request keeps to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pageport.errors import ConfigurationError
from pageport.load.answer import Answer

# What can be bounded, in milliseconds of one request.
MEASURES: Mapping[str, Callable[[Answer], float]] = {
    "ttft": lambda answer: answer.first_token_ms,
    "tpot": lambda answer: answer.ms_per_token,
    "itl": lambda answer: max(answer.between_chunks_ms, default=0.0),
    "e2el": lambda answer: answer.whole_ms,
}


@dataclass(frozen=True)
class Objective:
    """A measure and the most milliseconds it may be."""

    measure: str
    limit_ms: float

    def is_met_by(self, answer: Answer) -> bool:
        return MEASURES[self.measure](answer) <= self.limit_ms


def parse_objectives(texts: Sequence[str]) -> list[Objective]:
    """Read ``ttft:500``; several may stand in one text, with blanks between.

    Raises:
        ConfigurationError: another form, an unknown measure, or no positive number.
    """
    objectives = []
    for text in " ".join(texts).split():
        measure, _, limit = text.partition(":")
        try:
            limit_ms = float(limit)
        except ValueError:
            limit_ms = -1.0
        if measure not in MEASURES or not limit_ms > 0:
            raise ConfigurationError(
                f"--goodput is {text!r}; write one of {', '.join(MEASURES)}, a colon and milliseconds, as in ttft:500."
            )
        objectives.append(Objective(measure, limit_ms))
    return objectives
