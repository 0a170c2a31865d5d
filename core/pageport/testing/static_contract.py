"""Does a ``ProgramStep`` keep to its bucket, and to what ``ProgramStep`` says of what fills it up?"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pageport.backend.capabilities import Capabilities
from pageport.backend.program import Bucket, ProgramStep
from pageport.backend.reference.static_choose import ChoiceTensors
from pageport.errors import BackendError

_INT32_MAX = 2**31 - 1


class GroupSize(NamedTuple):
    """One cache group's pool; how many blocks it has may be unknown."""

    block_size: int
    num_blocks: int = _INT32_MAX


def check_step(step: ProgramStep, groups: Sequence[GroupSize]) -> None:
    """Refuse tensors in other shapes than the bucket's, and numbers that no step has.

    Raises:
        BackendError: names the tensor.
    """
    for name, tensor, shape, dtype in _tensors(step, groups):
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise BackendError(
                f"{name} of a step of {step.bucket} is {tensor.dtype} {list(tensor.shape)}; the bucket takes {dtype} "
                f"{list(shape)}."
            )
    for name, tensor, first, last in _ranges(step, groups):
        if tensor.numel() and not (first <= int(tensor.min()) and int(tensor.max()) <= last):
            raise BackendError(
                f"{name} of a step of {step.bucket} are {int(tensor.min())} … {int(tensor.max())}; "
                f"{first} … {last} is possible."
            )
    _check_padding(step)


def check_bucket(bucket: Bucket, groups: Sequence[GroupSize]) -> None:
    """Refuse a shape that no step can have.

    Raises:
        BackendError: says why.
    """
    if bucket.requests != 1 and bucket.requests != bucket.tokens:
        raise BackendError(f"{bucket} is neither one prompt nor requests with one token each.")
    for group in groups:
        if bucket.context % group.block_size:
            raise BackendError(f"The context of {bucket} is not made of whole blocks of {group.block_size} tokens.")


def check_declared(bucket: Bucket, capabilities: Capabilities, groups: Sequence[GroupSize]) -> None:
    """Refuse a shape that the device did not declare; core rounds contexts up to whole blocks.

    Raises:
        BackendError: names it.
    """
    whole = math.lcm(*(group.block_size for group in groups))
    contexts = {-(-context // whole) * whole for context in capabilities.context_buckets}
    is_prompt = bucket.requests == 1 and bucket.tokens in capabilities.token_buckets
    is_decode = bucket.requests == bucket.tokens and bucket.requests in capabilities.request_buckets
    if not (is_prompt or is_decode) or (contexts and bucket.context not in contexts):
        raise BackendError(f"{bucket} is none of the shapes that the device declares.")


def _tensors(
    step: ProgramStep, groups: Sequence[GroupSize]
) -> Iterator[tuple[str, Tensor, tuple[int, ...], torch.dtype]]:
    requests, tokens, context = step.bucket
    yield "token_ids", step.token_ids, (tokens,), torch.int64
    yield "positions", step.positions, (tokens,), torch.int64
    yield "seq_lens", step.seq_lens, (requests,), torch.int32
    yield "last_tokens", step.last_tokens, (requests,), torch.int64
    for name, given in (("block_tables", step.block_tables), ("slot_mappings", step.slot_mappings)):
        if len(given) != len(groups):
            raise BackendError(f"A step of {step.bucket} has {len(given)} {name} for {len(groups)} cache groups.")
    for index, group in enumerate(groups):
        blocks = context // group.block_size
        yield f"block_tables[{index}]", step.block_tables[index], (requests, blocks), torch.int32
        yield f"slot_mappings[{index}]", step.slot_mappings[index], (tokens,), torch.int64
    if step.choice is not None:
        choice = ChoiceTensors.of(step.choice)
        for name, tensor in zip(choice._fields, choice, strict=True):
            is_float = name in ("temperatures", "top_p", "min_p")
            yield f"choice.{name}", tensor, (requests,), torch.float32 if is_float else torch.int64


def _ranges(step: ProgramStep, groups: Sequence[GroupSize]) -> Iterator[tuple[str, Tensor, int, int]]:
    yield "positions", step.positions, 0, step.bucket.context - 1
    yield "seq_lens", step.seq_lens, 0, step.bucket.context
    yield "last_tokens", step.last_tokens, 0, step.bucket.tokens - 1
    for index, group in enumerate(groups):
        yield f"block_tables[{index}]", step.block_tables[index], -1, group.num_blocks - 1
        yield f"slot_mappings[{index}]", step.slot_mappings[index], -1, group.num_blocks * group.block_size - 1


def _check_padding(step: ProgramStep) -> None:
    """Tokens with slot -1 stand behind the others and are 0 at position 0, in every group."""
    requests, tokens, _ = step.bucket
    num_requests = int((step.seq_lens > 0).sum())
    if not bool((step.seq_lens[:num_requests] > 0).all()):
        raise BackendError(f"seq_lens of a step of {step.bucket} are {step.seq_lens.tolist()}: padding stands behind.")
    if num_requests == 0:
        raise BackendError(f"A step of {step.bucket} is nothing but padding.")
    num_tokens = num_requests if requests == tokens else int((step.slot_mappings[0] >= 0).sum())
    for slots in step.slot_mappings:
        if not bool((slots[:num_tokens] >= 0).all()) or not bool((slots[num_tokens:] == -1).all()):
            raise BackendError(f"slots of a step of {step.bucket} are {slots.tolist()}: {num_tokens} tokens have one.")
    if bool(step.token_ids[num_tokens:].any()) or bool(step.positions[num_tokens:].any()):
        raise BackendError(f"Tokens that fill up a step of {step.bucket} are not 0 at position 0.")
    if not bool((step.last_tokens[:num_requests] < num_tokens).all()):
        raise BackendError(f"last_tokens of a step of {step.bucket} name padding: {step.last_tokens.tolist()}.")
