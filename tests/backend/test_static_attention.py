"""Attention as compiled programs compute it, against the conformance suite's float64 oracle.

Whatever no query may see is NaN: free blocks, unused slots, the block for padding. The device's ``attention`` is
``static_attention``; the suite's own cases are all run in ``tests/conformance``.
"""

from dataclasses import replace

import pytest
import torch

from pageport.backend import AttentionParams
from pageport.backend.reference.static_attention import static_attention
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.attention_verdict import check_case
from pageport.testing.conformance.context import Context
from pageport.testing.static_backend import StaticBackend
from pageport.testing.static_device import StaticDevice

from .conftest import kv_spec

# Decodes around block edges and past a window, whole prompts, and chunks behind a cached prefix.
ROWS = (Row(1), Row(4), Row(5), Row(23), Row(24), Row(7, 7), Row(9, 9), Row(22, 5), Row(13, 9))
USUAL = AttentionCase(rows=ROWS, compute_dtype="float32", kv_dtype="float32", block_size=4, head_size=16)
CASES = {
    "grouped heads": {"num_heads": 6, "num_kv_heads": 2},
    "as many KV heads": {"num_heads": 4, "num_kv_heads": 4},
    "one KV head": {"num_heads": 8, "num_kv_heads": 1},
    "blocks of one token": {"block_size": 1},
    "blocks of sixteen tokens": {"block_size": 16},
    "values wider than keys": {"value_head_size": 24},
    "window over sliding blocks": {"sliding_window": 7, "kind": "sliding"},
    "window of one": {"sliding_window": 1, "kind": "sliding"},
    "window over full blocks": {"sliding_window": 7},
    "softcap": {"softcap": 6.0},
    "sinks": {"has_sinks": True},
    "alibi": {"has_alibi": True},
    "all variants": {"sliding_window": 9, "kind": "sliding", "softcap": 6.0, "has_sinks": True, "has_alibi": True},
    "int8": {"kv_dtype": "int8"},
    "int8, window": {"kv_dtype": "int8", "sliding_window": 7, "kind": "sliding"},
    "float8_e4m3fn": {"kv_dtype": "float8_e4m3fn"},
    "float8_e4m3fn with scales": {"kv_dtype": "float8_e4m3fn", "has_scales": True},
    "float8_e5m2 with scales": {"kv_dtype": "float8_e5m2", "has_scales": True},
    "more table than needed": {"extra_columns": 5},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_attention_agrees_with_the_oracle(changes):
    context = Context(StaticBackend, seed=5)
    check_case(context, replace(USUAL, **changes))


@pytest.mark.parametrize("window", [None, 6])
def test_requests_that_fill_up_change_nothing_for_the_others(window):
    device, spec = StaticDevice(), kv_spec()
    pool, params = device.allocate_kv(spec, 5), AttentionParams(scale=0.3, sliding_window=window)
    generator = torch.Generator().manual_seed(1)
    key, value = torch.randn(2, 9, 2, 8, generator=generator)
    slots = torch.tensor([12, 13, 14, 15, 4, 5, 6, 7, 16])
    device.write_kv(pool, 0, key, value, slots, params)
    query = torch.randn(4, 4, 8, generator=generator)
    table = torch.tensor([[3, 1, 4, -1], *[[-1] * 4] * 3], dtype=torch.int32)
    positions, seq_lens = torch.tensor([8, 0, 0, 0]), torch.tensor([9, 0, 0, 0], dtype=torch.int32)
    together = static_attention(pool, 0, query, params, table, positions, seq_lens)
    alone = static_attention(pool, 0, query[:1], params, table[:1], positions[:1], seq_lens[:1])
    assert alone.isfinite().all()
    torch.testing.assert_close(together[:1], alone, atol=1e-6, rtol=0)


def test_tokens_that_fill_up_a_prompt_change_nothing_for_the_others():
    device, spec = StaticDevice(), kv_spec()
    pool, params = device.allocate_kv(spec, 5), AttentionParams(scale=0.3, sliding_window=5)
    generator = torch.Generator().manual_seed(1)
    key, value = torch.randn(2, 9, 2, 8, generator=generator)
    device.write_kv(pool, 0, key, value, torch.tensor([12, 13, 14, 15, 4, 5, 6, 7, 16]), params)
    query = torch.randn(8, 4, 8, generator=generator)
    # The first block has left the window of position 8.
    table, seq_lens = torch.tensor([[-1, 1, 4, -1]], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    positions = torch.tensor([8, *7 * [0]])
    filled = static_attention(pool, 0, query, params, table, positions, seq_lens)
    alone = static_attention(pool, 0, query[:1], params, table, positions[:1], seq_lens)
    assert alone.isfinite().all()
    torch.testing.assert_close(filled[:1], alone, atol=1e-6, rtol=0)
