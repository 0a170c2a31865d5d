"""Is what ``explain`` says true? Each op is called under a profiler that sees which functions run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.kv import AttentionParams
from pageport.backend.op_table import PARTS, OpImplementation, OpTable, compile_ops
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.testing.conformance.attention_case import Row, typical
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.op_formulas import OPS, Draw
from pageport.testing.conformance.sample_check import ChoiceRow, batch_on, choice_batch
from pageport.testing.conformance.scene import Scene

REFERENCE = "pageport.backend.reference."


def explain_checks() -> Iterator[Check]:
    """Yield one check: its message names the op."""
    yield Check(Level.OPS, "ops/explain", check_explain)


def check_explain(context: Context) -> None:
    """The function that the op table names is called, and an op left to the reference runs no code of the backend."""
    table = compile_ops(context.device)
    own = {kind.__module__.split(".")[0] for kind in type(context.device).__mro__} - {"pageport", "abc", "builtins"}
    ran = {name: functions_run(call) for name, call in _calls(context, table).items()} | _cache_ops(context)
    ran["rope_write_kv"] = _run_rope_write(context, table)
    for name, served in table.implementations.items():
        if served.source == "parts":
            check_parts(name, served, [table.implementations[part].where for part in PARTS[name]], ran[name])
        else:
            check_served(name, served, ran[name], own)


def check_served(name: str, served: OpImplementation, run: set[str], own: set[str]) -> None:
    """Compare what is said of one op with the functions that ran, each ``module:qualname``."""
    others = sorted(function for function in run if function.split(".")[0].split(":")[0] in own)
    assert any(function == served.where or function.startswith(f"{served.where}.") for function in run), (
        f"{name} is said to be served by {served.where}, which was not called; "
        f"of the backend's own, {', '.join(others) or 'nothing'} was."
    )
    if served.source == "reference":
        assert not others, f"{name} is said to be left to the reference, but {others[0]} was called."
        assert any(function.startswith(REFERENCE) for function in run), (
            f"{name} is said to be left to the reference, but no function of {REFERENCE.rstrip('.')} was called."
        )


def check_parts(name: str, served: OpImplementation, parts: Sequence[str], run: set[str]) -> None:
    """Check that an inherited op ran, and every op that it consists of."""
    for function in (served.where, *parts):
        assert function in run, f"{name} is said to be served by {function} among others, which was not called."


def _calls(context: Context, table: OpTable) -> Mapping[str, Callable[[], object]]:
    """Return a call, with ordinary inputs, of each op that needs no cache."""
    device, where = context.device, context.device.torch_device
    dtype = typical(context.capabilities).compute_dtype
    draw = Draw(context.torch_generator(), getattr(torch, dtype))
    calls: dict[str, Callable[[], object]] = {}
    for spec in OPS:
        inputs = {name: value.to(where) for name, value in spec.draw(draw, 3, 64).items()}
        calls[spec.op] = _bound(getattr(table, spec.op), {**inputs, **spec.options})
    matrix = draw.normal(32, 64)
    stored = StoredTensor(scheme="f32", shape=(32, 64), read=lambda: {"weight": matrix.float()})
    weight = device.prepare_weight(
        WeightSpec(name="conformance", out_features=32, in_features=64, compute_dtype=dtype), [stored]
    )
    positions = torch.arange(3, device=where)
    heads = [draw.normal(3, 2, 64).to(where) for _ in range(2)]
    calls["linear"] = _bound(table.linear, {"weight": weight, "x": draw.normal(3, 64).to(where)})
    gate_up = torch.empty(3, 32, dtype=matrix.dtype, device=where)
    calls["linear_silu_mul"] = _bound(
        table.linear_silu_mul, {"weight": weight, "x": draw.normal(3, 64).to(where), "bias": None, "gate_up": gate_up}
    )
    calls["embed"] = _bound(table.embed, {"weight": weight, "token_ids": positions})
    table_of_angles: Tensor = torch.ones(3, 64, device=where)
    calls["rope"] = lambda: table.rope(heads[0], heads[1], positions, table_of_angles, False)
    choices = choice_batch(context.torch_generator(), [ChoiceRow(0.0), ChoiceRow(), ChoiceRow(top_p=0.9)], 64)
    calls["sample"] = _bound(table.sample, {"logits": draw.normal(3, 64).to(where), "batch": batch_on(where, choices)})
    return calls


def _bound(function: Callable[..., object], arguments: Mapping[str, Any]) -> Callable[[], object]:
    return lambda: function(**arguments)


def _cache_ops(context: Context) -> dict[str, set[str]]:
    """Return what runs in the ops that need a cache, while one decode and one prompt are written and attended."""
    ran: dict[str, set[str]] = {}
    for op, row in {"decode_attention": Row(20), "prefill_attention": Row(20, 20)}.items():
        case = replace(typical(context.capabilities), rows=(row,))
        watched = _WatchedDevice(context.device)
        with Scene(cast(Device, watched), case, context.numpy_generator()) as scene:
            scene.write_history()
            scene.step(case.rows, case.num_decodes)
        ran |= {op: watched.ran["attention"], "write_kv": watched.ran["write_kv"]}
    return ran


def _run_rope_write(context: Context, table: OpTable) -> set[str]:
    """Return what runs while three tokens are rotated and written."""
    device, case = context.device, typical(context.capabilities)
    spec, where = case.kv_spec, device.torch_device
    shape, dtype = (3, spec.num_kv_heads, spec.head_size), getattr(torch, case.compute_dtype)
    query, key, value = (torch.ones(shape, dtype=dtype, device=where) for _ in range(3))
    places = torch.arange(3, device=where)
    angles = torch.ones(3, spec.head_size, device=where)
    params = AttentionParams(scale=1.0)
    pool = device.allocate_kv(spec, 3)
    try:
        return functions_run(
            lambda: table.rope_write_kv(pool, 0, query, key, value, places, angles, False, places, params)
        )
    finally:
        device.free_kv(pool)


class _WatchedDevice:
    """A device that notes what runs in two of its methods."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.ran: dict[str, set[str]] = {"attention": set(), "write_kv": set()}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._device, name)
        return partial(self._watch, name, value) if name in self.ran else value

    def _watch(self, name: str, function: Callable[..., object], *arguments: Any) -> None:
        self.ran[name] |= functions_run(lambda: function(*arguments))


def functions_run(call: Callable[[], object]) -> set[str]:
    """Call and return what ran in this thread, as ``module:qualname``."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}")
        elif event == "c_call":
            seen.add(f"{getattr(argument, '__module__', None)}:{getattr(argument, '__qualname__', '?')}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen
