"""``ModelProgram``: a whole decoder as a device compiled it, a shape at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int32, Int64
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch


class Bucket(NamedTuple):
    """A step's shape: one prompt's next ``tokens``, or ``requests`` requests with one token each.

    Block tables span ``context`` tokens, a multiple of every group's block size.
    """

    requests: int
    tokens: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What it took to make one bucket ready; ``num_ops`` is None where nobody counted the graph's."""

    bucket: Bucket
    seconds: float
    num_ops: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramStep:
    """One step in the exact shape of its bucket, on ``Device.torch_device``.

    What fills it up: tokens with id 0, position 0 and slot -1, behind the others; requests with ``seq_lens`` 0; block
    -1 where a request has none, the null block, whose content nobody may see. A query sees the keys up to its own
    position. Hidden states of what fills up, and their logits, may be anything.
    """

    bucket: Bucket
    token_ids: Int64[Tensor, "tokens"]
    positions: Int64[Tensor, "tokens"]
    seq_lens: Int32[Tensor, "requests"]  # cached plus this step's tokens
    last_tokens: Int64[Tensor, "requests"]  # of each request, the token whose logits are wanted
    block_tables: tuple[Int32[Tensor, "requests blocks"], ...]  # one a cache group
    slot_mappings: tuple[Int64[Tensor, "tokens"], ...]
    # With ``ModelProgram.samples``: how each request's next token is chosen, if core lets the program choose.
    choice: ChoiceBatch | None = None


class ProgramOutput(ABC):
    """What one step left on the device; only what is asked for is brought to ``Device.torch_device``.

    It stays what it is when later steps run.
    """

    # The next token of each request, where the program samples and was asked to.
    choice: Choice | None = None

    @abstractmethod
    def logits(self) -> Float[Tensor, "requests vocab"]:
        """Return the logits behind each request's last token, in any floating-point dtype."""

    @abstractmethod
    def hidden(self) -> Float[Tensor, "tokens hidden"]:
        """Return the final norm's output of every token, in the compute dtype."""


class ModelProgram(ABC):
    """What ``Device.build_model`` returns; it reads and writes the pools it was built over."""

    # Does a step choose tokens as ``Device.sample`` does, when its ``choice`` says how?
    samples: bool = False

    @abstractmethod
    def compile(self, bucket: Bucket) -> None:
        """Make one of the buckets ready, before the first step: from a cache on disk, say, or by compiling it."""

    @abstractmethod
    def step(self, step: ProgramStep) -> ProgramOutput:
        """Compute a step whose bucket is ready."""

    def close(self) -> None:  # noqa: B027 - nothing to give back unless the device holds something
        """Give everything back but the pools."""
