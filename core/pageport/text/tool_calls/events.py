"""What a model's output consists of, in the order in which it comes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A call of the tool ``name``; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: JSON text, as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnds:
    index: int


Event = Content | Reasoning | CallBegins | CallArguments | CallEnds
