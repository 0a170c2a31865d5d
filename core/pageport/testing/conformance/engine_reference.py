"""``EngineReference``: what a model says according to core's plain reference, and ``judge``, which compares with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pageport.testing.conformance.kv_rounding import EIGHT_BITS
from pageport.testing.conformance.tiny_engine import Answer, TinyEngine, TinyModel, beam_request, request
from pageport.testing.rotating_device import RotatingDevice

# How far a log-probability may be from the float32 reference's, by the coarsest dtype in use. The tiny models' logits
# spread over up to 60; another implementation in the same dtype was measured at 2e-5, 0.04 and 0.32: these are several
# times that, and a token that is not seen, or seen twice, moves them by more.
TOLERANCES = {"float32": 3e-4, "float16": 0.12, "bfloat16": 1.0}
# The reference keeps an 8-bit cache, too. A number in the middle between two steps may then become either.
EIGHT_BIT_TOLERANCES = dict.fromkeys(EIGHT_BITS, 0.2)


class Tally(NamedTuple):
    """How many tokens were compared, and how many of them are near ties that went the other way."""

    tokens: int
    near_ties: int


class EngineReference:
    """One model on the reference device; each question is one prefill, so nothing here can be scheduled wrong."""

    def __init__(self, model: TinyModel, kv_dtype: str = "float32", *, rotates_keys: bool = False) -> None:
        self._engine = TinyEngine(
            RotatingDevice([kv_dtype] if rotates_keys else []),
            model,
            block_size=16,
            max_num_batched_tokens=model.max_positions,
            num_kv_blocks=256,
            kv_cache_dtype=kv_dtype,
        )
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Return the log-probabilities [tokens, vocab] from which each of ``tokens`` would be chosen."""
        read = (*prompt, *tokens[:-1])
        if read not in self._known:
            answer = self._engine.run(request("score", read, max_tokens=1, prompt_logprobs=-1))["score", 0]
            self._known[read] = torch.stack(answer.prompt_logprobs + answer.logprobs)
        return self._known[read][len(prompt) - 1 :]

    def beams(self, prompt: Sequence[int], *, width: int, max_tokens: int) -> list[Answer]:
        """Return the beams it finds, best first."""
        answers = self._engine.run(beam_request("beams", prompt, width=width, max_tokens=max_tokens))
        return [answers["beams", choice] for choice in range(width)]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Compares answers with the reference's, each token on the answer's own history, so that near ties are no faults.

    ``dtype`` is the coarsest in use; ``where`` begins a message, ``hint`` ends it.
    """

    reference: EngineReference
    dtype: str
    block_size: int
    where: str
    hint: str

    def compare(self, answers: Iterable[Answer]) -> Tally:
        """Compare every answer; of an aborted one, what came before.

        Raises:
            AssertionError: names the first token that is off.
        """
        tallies = [self._compare(answer) for answer in answers]
        return Tally(sum(tally.tokens for tally in tallies), sum(tally.near_ties for tally in tallies))

    def _compare(self, answer: Answer) -> Tally:
        who = f"{self.where}: a prompt of {len(answer.prompt)} tokens"
        assert answer.error is None, f"{who} ended with an error ({answer.error}); {self.hint}"
        if not answer.tokens:
            return Tally(0, 0)
        expected = self.reference.logprobs(answer.prompt, answer.tokens)
        off = (torch.stack(answer.logprobs) - expected).abs()
        tolerance = {**TOLERANCES, **EIGHT_BIT_TOLERANCES}[self.dtype]
        for step, worst in enumerate(off.max(dim=-1).values.tolist()):
            token = int(off[step].argmax())
            assert worst <= tolerance, (
                f"{who} differs at {self._place(answer, step)}: token {token} has logprob "
                f"{float(answer.logprobs[step][token]):.4g}, the reference gives {float(expected[step][token]):.4g} "
                f"(tolerance {tolerance:g} in {self.dtype}); {self.hint}"
            )
        if not answer.is_greedy:
            return Tally(len(answer.tokens), 0)
        # Both candidates may be off by the tolerance.
        gaps = (expected.max(dim=-1).values - expected[torch.arange(len(answer.tokens)), answer.tokens]).tolist()
        for step, gap in enumerate(gaps):
            assert gap <= 2 * tolerance, (
                f"{who} chooses token {answer.tokens[step]} at {self._place(answer, step)}, {gap:.4g} below the "
                f"reference's {int(expected[step].argmax())}, though temperature is 0; {self.hint}"
            )
        return Tally(len(answer.tokens), sum(gap > 0 for gap in gaps))

    def _place(self, answer: Answer, step: int) -> str:
        """Say where the token sits whose logits are meant."""
        block, offset = divmod(len(answer.prompt) + step - 1, self.block_size)
        return f"position {len(answer.prompt) + step - 1} (offset {offset} of block {block})"
