"""Checks of ``rope_write_kv``: attention finds each value under its rotated key, and the queries are rotated."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pageport.backend.op_table import compile_ops
from pageport.testing.conformance.cache import Cache, sample_spec
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.kv_rounding import steps
from pageport.testing.conformance.op_verdict import check_values
from pageport.testing.conformance.oracle import as_floats
from pageport.testing.conformance.rope_check import cos_sin, rotated

NUM_BLOCKS = 5
NUM_POSITIONS = 5000
GROUP_SIZE = 3  # query heads for each KV head
LAYER = 1


def rope_write_checks(context: Context) -> Iterator[Check]:
    """Yield the checks where the device declares an op of its own; what it inherits consists of ops with checks."""
    if "op:rope_write_kv" not in context.capabilities.features:
        return
    for dtype in context.capabilities.kv_dtypes:
        for interleaved in (False, True):
            for share in (1, 2):
                pairs, part = "interleaved" if interleaved else "half", "all" if share == 1 else f"1/{share}"
                run = partial(check_rope_write, dtype=dtype, interleaved=interleaved, share=share)
                yield Check(Level.OPS, f"ops/rope_write_kv, {pairs}, {part} of a head/{dtype}", run)


def check_rope_write(context: Context, dtype: str, interleaved: bool, share: int) -> None:
    """Rotate and write views into a fused projection at shuffled slots, with padding between them."""
    generator = context.torch_generator()
    with Cache(context, sample_spec(context.capabilities, dtype=dtype), NUM_BLOCKS) as cache:
        spec, where = cache.spec, context.device.torch_device
        count = min(2 * spec.block_size + 1, cache.max_tokens // 2)
        key, value = (tensor.cpu() for tensor in cache.random_tokens(count, generator))
        table = cos_sin(NUM_POSITIONS, spec.head_size // share)
        positions = torch.randint(NUM_POSITIONS, (count,), generator=generator)
        num_heads = GROUP_SIZE * spec.num_kv_heads
        query = torch.randn(count, num_heads, spec.head_size, generator=generator).to(cache.compute_dtype)
        # Turned back, so that the op must turn it to where attention will look for it.
        turned_back = rotated(key.double(), positions, _reversed(table), interleaved).to(cache.compute_dtype)
        fused = torch.cat((query, turned_back, value), dim=1)
        blocks = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
        slots = torch.tensor(
            [blocks[p // spec.block_size] * spec.block_size + p % spec.block_size for p in range(count)]
        )
        order = torch.randperm(count, generator=generator)
        # Every other token of the step is padding, and full of NaN.
        step = torch.full((2 * count, *fused.shape[1:]), torch.nan, dtype=cache.compute_dtype)
        step[::2] = fused[order]
        spread_slots, spread_positions = torch.full((2 * count,), -1), torch.zeros(2 * count, dtype=torch.int64)
        spread_slots[::2], spread_positions[::2] = slots[order], positions[order]
        given = step.to(where)
        first_value = num_heads + spec.num_kv_heads
        parts = given[:, :num_heads], given[:, num_heads:first_value], given[:, first_value:]
        compile_ops(context.device).rope_write_kv(
            cache.pool,
            LAYER,
            *parts,
            spread_positions.to(where),
            table.to(where),
            interleaved,
            spread_slots.to(where),
            cache.params,
        )
        _check_queries(parts[0][::2], query[order], positions[order], table, interleaved)
        assert torch.equal(parts[2][::2].cpu(), value[order]), "rope_write_kv changes the values it is given."
        _check_found(cache, cache.look_up(LAYER, key.to(where), blocks), value.to(where))


def _check_queries(actual: Tensor, query: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> None:
    expected = rotated(query.double(), positions, table, interleaved)
    suspects = {
        "the queries are not rotated": query.double(),
        "wrong pairing": rotated(query.double(), positions, table, not interleaved),
    }
    check_values("rope_write_kv, queries afterwards", actual, expected, query.dtype, True, suspects)


def _check_found(cache: Cache, found: Tensor, value: Tensor) -> None:
    """Compare what attention finds under each rotated key with the value written there."""
    rounding = torch.from_numpy(0.51 * steps(as_floats(value), cache.spec.dtype)).to(found)
    wrong = ~((found - value).abs() <= rounding + torch.finfo(value.dtype).eps * value.abs().clamp(min=1))
    if wrong.any():
        token, head, feature = wrong.nonzero()[0].tolist()
        raise AssertionError(
            f"rope_write_kv: the value of token {token}, KV head {head} is not found under its rotated key: "
            f"{found[token, head, feature]:.4g} instead of {value[token, head, feature]:.4g}. Is the key stored as it "
            "was before the rotation, rotated by another position, or written to another slot?"
        )


def _reversed(table: Tensor) -> Tensor:
    """Return the table that turns the other way."""
    half = table.shape[1] // 2
    return torch.cat((table[:, :half], -table[:, half:]), dim=1)
