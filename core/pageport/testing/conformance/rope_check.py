"""Checks of ``rope``: half and interleaved pairs, full and partial rotation, in place on strided views."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from pageport.backend.op_table import compile_ops
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.op_formulas import Draw
from pageport.testing.conformance.op_verdict import Guarded, check_values

# (tokens, heads, KV heads, head size)
SHAPES = ((0, 4, 2, 64), (1, 4, 4, 64), (7, 3, 1, 80), (65, 8, 2, 16), (1025, 2, 1, 32))
NUM_POSITIONS = 5000


def rope_checks(dtype: str) -> Iterator[Check]:
    """Yield the checks for one compute dtype."""
    for interleaved in (False, True):
        for share in (1, 2, 4):
            name = f"{'interleaved' if interleaved else 'half'}, {'all' if share == 1 else f'1/{share}'} of a head"
            run = partial(check_rope, dtype=dtype, interleaved=interleaved, share=share)
            yield Check(Level.OPS, f"ops/rope, {name}/{dtype}", run)


def check_rope(context: Context, dtype: str, interleaved: bool, share: int) -> None:
    """Rotate views into a fused projection, and separate tensors, at positions in any order."""
    device = context.device
    rope = compile_ops(device).rope
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    for tokens, heads, kv_heads, head_size in SHAPES:
        rotary_size = head_size // share
        table = cos_sin(NUM_POSITIONS, rotary_size)
        positions = draw.indices(tokens, NUM_POSITIONS)
        positions[:2] = torch.tensor([NUM_POSITIONS - 1, 0])[:tokens]
        fused = draw.normal(tokens, (heads + 2 * kv_heads) * head_size)
        split = fused.double().view(tokens, heads + 2 * kv_heads, head_size)
        what = f"rope ({dtype}, {tokens} tokens, {heads} + {kv_heads} heads of {head_size}, {rotary_size} rotated"
        given = Guarded.copy_of(fused, device.torch_device)
        views = given.tensor.view(tokens, heads + 2 * kv_heads, head_size)
        query, key = views[:, :heads], views[:, heads : heads + kv_heads]
        apart = [Guarded.copy_of(part.contiguous(), device.torch_device) for part in (query.cpu(), key.cpu())]
        arguments = (positions.to(device.torch_device), table.to(device.torch_device), interleaved)
        rope(query, key, *arguments)
        rope(apart[0].tensor, apart[1].tensor, *arguments)
        rest = split[:, heads + kv_heads :]
        turned = rotated(split[:, : heads + kv_heads], positions, table, interleaved)
        swapped = rotated(split[:, : heads + kv_heads], positions, table, not interleaved)
        pairs = "(i, i + rotary_size / 2)" if interleaved else "(2i, 2i + 1)"
        expected = torch.cat((turned, rest), dim=1)
        suspects = {
            f"wrong pairing, of features {pairs}": torch.cat((swapped, rest), dim=1),
            "neither query nor key is rotated": split,
        }
        check_values(f"{what}, views of a fused projection)", views, expected, fused.dtype, True, suspects)
        both = torch.cat([guarded.tensor for guarded in apart], dim=1)
        check_values(f"{what}, tensors of their own)", both, turned, fused.dtype, True)
        assert all(guarded.is_untouched() for guarded in (given, *apart)), f"{what}): the op writes outside its inputs."


def cos_sin(num_positions: int, rotary_size: int) -> Tensor:
    """Return cosines, then sines [positions, rotary_size], of angles with base 10,000 (arXiv:2104.09864)."""
    frequencies = 10_000.0 ** (-torch.arange(0, rotary_size, 2, dtype=torch.float64) / rotary_size)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def rotated(heads: Tensor, positions: Tensor, table: Tensor, interleaved: bool) -> Tensor:
    """Turn each pair of features as a complex number, in float64 [tokens, heads, head_size]."""
    half = table.shape[1] // 2
    angles = table.double()[positions]
    cosines, sines = angles[:, :half], angles[:, half:]
    turned = heads.clone()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        cosine, sine = cosines[:, i, None], sines[:, i, None]
        turned[..., a] = heads[..., a] * cosine - heads[..., b] * sine
        turned[..., b] = heads[..., b] * cosine + heads[..., a] * sine
    return turned
