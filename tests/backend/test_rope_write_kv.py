"""The fused op is its two parts, also where a device replaced one of them alone."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities
from pageport.backend.op_table import compile_ops

from .conftest import PlainDevice, kv_spec

PARAMS = AttentionParams(scale=1.0)


class Rotated(NamedTuple):
    """One step's arguments of ``rope_write_kv`` between ``layer`` and ``params``."""

    query: Tensor
    key: Tensor
    value: Tensor
    positions: Tensor
    cos_sin: Tensor
    interleaved: bool
    slots: Tensor


def step() -> Rotated:
    draw = torch.Generator().manual_seed(4)
    query, key, value = (torch.randn(3, heads, 8, generator=draw) for heads in (4, 2, 2))
    angles = torch.rand(20, 4, generator=draw) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    return Rotated(query, key, value, torch.tensor([7, 0, 19]), cos_sin, False, torch.tensor([6, -1, 11]))


def test_keys_are_stored_rotated_and_values_as_they_are():
    device, given = PlainDevice(), step()
    query, key = given.query.clone(), given.key.clone()
    device.rope(query, key, given.positions, given.cos_sin, False)
    pool = device.allocate_kv(kv_spec(), 3)
    device.rope_write_kv(pool, 1, *given, PARAMS)
    for token, slot in ((0, 6), (2, 11)):
        assert torch.equal(pool.key[1, slot // 4, :, slot % 4], key[token])
        assert torch.equal(pool.value[1, slot // 4, :, slot % 4], given.value[token])
    assert torch.equal(given.query, query)
    assert not torch.equal(key, step().key)


@pytest.mark.parametrize(("replaced", "features"), [("rope", {"op:rope": 1}), ("write_kv", {})])
def test_inherited_op_calls_what_a_device_replaced(replaced, features):
    called = []
    methods = {
        "capabilities": property(lambda self: Capabilities(features=features)),
        replaced: lambda self, *arguments: called.append(arguments),
    }
    device = type("HalfReplaced", (PlainDevice,), methods)()
    table = compile_ops(device)
    served = table.implementations["rope_write_kv"]
    assert (served.source, served.where) == ("parts", "pageport.backend.device:Device.rope_write_kv")
    table.rope_write_kv(device.allocate_kv(kv_spec(block_size=16), 3), 0, *step(), PARAMS)
    assert len(called) == 1
