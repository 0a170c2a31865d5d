"""Design rule 9: a decoder computes through op-table functions and takes views, nothing else."""

from dataclasses import fields, replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_VIEWS = {"view", "slice", "unflatten", "select", "alias", "as_strided", "_unsafe_view", "detach", "t"}


class _OutsideOps(TorchDispatchMode):
    """Collects aten ops that are no views while no op-table function runs."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.called: list[str] = []
        self.offences: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if self.depth == 0 and name not in _VIEWS:
            self.offences.append(name)
        return func(*args, **(kwargs or {}))

    def wrap(self, ops):
        def wrapped(name, function):
            def call(*args, **kwargs):
                self.depth += 1
                self.called.append(name)
                try:
                    return function(*args, **kwargs)
                finally:
                    self.depth -= 1

            return call

        functions = {field.name: getattr(ops, field.name) for field in fields(ops)}
        return replace(ops, **{name: wrapped(name, f) for name, f in functions.items() if callable(f)})


def _watched_step(variant, tiny_model, paged, tokens, ops):
    mode = _OutsideOps()
    model = paged(tiny_model(variant), ops=mode.wrap(ops))
    rows = [(tokens(20), 0, model.new_blocks(20))]
    chosen = torch.tensor([19, 3])
    # Logit rows grow to the most that were asked for.
    model.decoder.logits(model.hidden(rows), chosen)
    model.decoder.logits(model.hidden(rows), None)
    inputs, batches = model.inputs(rows)
    mode.called.clear()
    with mode:
        model.decoder.logits(model.decoder.hidden(inputs, model.pools, batches), chosen)
        model.decoder.logits(model.decoder.hidden(inputs, model.pools, batches), None)
        model.decoder.hidden(inputs, model.pools, batches, chosen)
    return mode


def test_no_architecture_computes_outside_the_op_table(variant, tiny_model, paged, tokens, ops):
    assert _watched_step(variant, tiny_model, paged, tokens, ops).offences == []


def test_the_watch_notices_a_computing_op():
    x, mode = torch.ones(4), _OutsideOps()
    with mode:
        x.view(2, 2)[:, :1]
        x * 2
    assert mode.offences == ["mul"]


@pytest.mark.parametrize(
    ("name", "calls_per_layer"),
    [
        ("llama", "linear rope_write_kv attention linear add_rms_norm linear_silu_mul linear add_rms_norm"),
        (
            "gemma3",
            "linear rms_norm rms_norm rope_write_kv attention linear rms_norm add_rms_norm "
            "linear gelu_mul linear rms_norm add_rms_norm",
        ),
        ("gpt-neox-parallel", "linear rope_write_kv attention linear layer_norm add linear gelu linear add layer_norm"),
    ],
)
def test_a_layer_is_these_ops(name, calls_per_layer, tiny_model, paged, tokens, ops):
    called = _watched_step(name, tiny_model, paged, tokens, ops).called
    layer = calls_per_layer.split()
    start = called.index("linear")
    assert called[start : start + 2 * len(layer)] == 2 * layer


def test_steps_compute_at_fixed_addresses(tiny_model, paged, tokens):
    model = paged(tiny_model("llama"))
    blocks = model.new_blocks(60)
    first = model.hidden([(tokens(50), 0, blocks)]).data_ptr()
    bytes_before = model.decoder.workspace_bytes
    second = model.hidden([(tokens(1), 50, blocks)]).data_ptr()
    assert (first, bytes_before) == (second, model.decoder.workspace_bytes)


def test_wanted_rows_take_no_memory(tiny_model, paged, tokens):
    model = paged(tiny_model("gemma2"))
    rows = [(tokens(50), 0, model.new_blocks(50))]
    bytes_before = model.decoder.workspace_bytes
    model.hidden(rows, torch.arange(50))
    assert model.decoder.workspace_bytes == bytes_before


def test_a_step_beyond_the_buffers_is_an_assertion(tiny_model, paged, tokens):
    model = paged(tiny_model("llama"))
    with pytest.raises(AssertionError, match="a step of 513 tokens; the buffers hold 512"):
        model.hidden([(tokens(513), 0, model.new_blocks(513))])
