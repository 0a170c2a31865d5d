"""What a step of a program gave against what the reference says, and whose it is if not the request's own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pageport.backend.choice import ChoiceBatch
from pageport.backend.program import Bucket
from pageport.backend.reference.choose import choose_tokens
from pageport.testing.conformance.engine_reference import EngineReference
from pageport.testing.conformance.sample_check import select_rows


def judge_logits(
    where: str, reference: EngineReference, histories: Sequence[Sequence[int]], logits: Tensor, tolerance: float
) -> None:
    """Compare the log-probabilities of a step's first requests with the reference's for their histories.

    Raises:
        AssertionError: says whose they are, if not the request's own.
    """
    found = logits.float().cpu()[: len(histories)].log_softmax(-1)
    expected = [reference.logprobs(history[:1], [*history[1:], 0]) for history in histories]
    for place, scores in enumerate(expected):
        who = f"{where}: request {place} of {len(histories)}, which has {len(scores)} tokens,"
        assert not found[place].isnan().any(), (
            f"{who} gets NaN: block -1 and slots behind a request's tokens hold NaN, and 0 * NaN is NaN, so leave out "
            "what no query sees by selection, in keys and in values"
        )
        off = float((found[place] - scores[-1]).abs().max())
        if off <= tolerance:
            continue
        for other, theirs in enumerate(expected):
            for token, row in enumerate(theirs):
                if float((found[place] - row).abs().max()) <= tolerance:
                    whose = "its" if other == place else f"request {other}'s"
                    raise AssertionError(f"{who} gets the logits of {whose} token {token}: what does last_tokens say?")
        raise AssertionError(
            f"{who} has log-probabilities that are off by {off:.3g} (tolerance {tolerance:g}): are they those of a "
            "token that fills the step up, or is a wrong position, length or block table used?"
        )


def judge_choice(bucket: Bucket, found: Tensor, logits: Tensor, batch: ChoiceBatch, count: int) -> None:
    """Compare the tokens of a step's first ``count`` requests with those of the reference, from the same logits.

    Raises:
        AssertionError: says whose parameters were used, if any's.
    """
    expected = choose_tokens(logits, batch).token_ids[:count]
    for place in (found != expected).nonzero().flatten().tolist():
        what = f"a step of {bucket} chooses token {int(found[place])} for request {place}, not {expected[place]}"
        for other in range(count):
            parameters = select_rows(batch, torch.tensor([other]))
            if other != place and choose_tokens(logits[place : place + 1], parameters).token_ids == found[place]:
                raise AssertionError(f"{what}: the one with the parameters of request {other}")
        raise AssertionError(f"{what}: the one that Device.sample chooses of these logits with this request's choice")
