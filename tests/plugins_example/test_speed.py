"""The kernel that docs/writing-a-backend.md ends with is faster than the one it replaces, as the page says."""

import importlib
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pageport.backend.device import Device
from pageport.backend.kv import AttentionParams, KVSpec
from pageport.testing.conformance.levels.performance import fill, uniform_batch
from pageport.testing.reference_device import ReferenceDevice

PLUGIN = Path(__file__).parents[2] / "plugins" / "example"
LAYERS = 8


def layer_seconds(device: Device, spec: KVSpec, requests: int, length: int, num_heads: int) -> float:
    """Return the processor time of one layer with its share of the plan: the best of many."""
    blocks = requests * -(-length // spec.block_size)
    table = np.random.default_rng(1).permutation(blocks).reshape(requests, -1).astype(np.int32)
    pool, params = device.allocate_kv(spec, blocks), AttentionParams(scale=0.125)
    fill(device, pool, spec, blocks * spec.block_size, torch.float32, params)
    query = torch.rand(requests, num_heads, spec.head_size)
    out, seconds = torch.empty_like(query), []
    for _ in range(15):
        batch = uniform_batch(table, length, 1, torch.device("cpu"))
        start = time.thread_time()
        batch.plan = device.plan(spec, batch)
        for _ in range(LAYERS):
            device.attention(pool, 0, query, params, batch, out)
        seconds.append((time.thread_time() - start) / LAYERS)
    return min(seconds)


@pytest.mark.full
@pytest.mark.parametrize(("requests", "length", "num_heads"), [(1, 200, 9), (8, 200, 9), (4, 2000, 9), (8, 1024, 32)])
def test_decode_attention_is_faster_than_the_inherited_one(
    requests: int, length: int, num_heads: int, unchecked_shapes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLUGIN))
    device = importlib.import_module("pageport_example.device").ExampleDevice()
    size, kv_heads = (64, 3) if num_heads == 9 else (128, 8)
    spec = KVSpec(
        num_layers=1, num_kv_heads=kv_heads, head_size=size, value_head_size=size, block_size=16, dtype="float32"
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = [layer_seconds(one, spec, requests, length, num_heads) for one in (ReferenceDevice(), device)]
    torch.set_num_threads(threads)
    assert seconds[1] < 0.95 * seconds[0]
