"""Overrides and declared features must agree in both directions."""

import pytest
import torch

from pageport.backend import Capabilities, Graph
from pageport.backend.op_table import ATTENTION_OPS, HOT_OPS, OPTIONAL_OPS, REQUIRED_OPS, OpTable, compile_ops
from pageport.errors import BackendError, UnsupportedFeature

from .conftest import PlainDevice


def device_with(features, **overrides):
    """Return a device of a new class with these methods."""
    methods = {"capabilities": property(lambda self: Capabilities(features=features))} | overrides
    return type("OtherDevice", (PlainDevice,), methods)()


def rms_norm(self, x, weight, epsilon, out=None):
    return x


def capture(self, run):
    return Graph()


def test_device_without_graphs_refuses_to_capture():
    with pytest.raises(UnsupportedFeature, match="PlainDevice does not capture graphs"):
        PlainDevice().capture(lambda: None)


def test_declared_capture_is_accepted():
    compile_ops(device_with({"graph": 1}, capture=capture))


def test_device_that_replaces_nothing_is_served_by_the_reference():
    table = compile_ops(PlainDevice())
    sources = {name: served.source for name, served in table.implementations.items()}
    assert (sources.pop("rope_write_kv"), sources.pop("linear_silu_mul")) == ("parts", "parts")
    assert set(sources.values()) == {"reference"}
    assert table.implementations["rope"].where == "pageport.backend.device:Device.rope"
    x = torch.ones(2, 4)
    assert torch.equal(table.add(x, x), torch.full((2, 4), 2.0))


def test_table_has_one_callable_an_op():
    ops = set(REQUIRED_OPS + OPTIONAL_OPS)
    called = ops - set(ATTENTION_OPS) | {"attention"}
    assert called == set(OpTable.__slots__) - {"implementations"}
    assert set(HOT_OPS) <= ops
    assert all(callable(getattr(compile_ops(PlainDevice()), op)) for op in called)


def test_attention_is_served_by_halves_or_as_a_whole():
    def attention(self, pool, layer, query, params, batch, out): ...

    def sources(**overrides):
        table = compile_ops(device_with({}, **overrides))
        return [table.implementations[op].source for op in ATTENTION_OPS]

    assert sources() == ["reference", "reference"]
    assert sources(decode_attention=attention) == ["device", "reference"]
    assert sources(prefill_attention=attention) == ["reference", "device"]
    assert sources(attention=attention) == ["device", "device"]


def test_declared_override_serves_its_op():
    table = compile_ops(device_with({"op:rms_norm": 1}, rms_norm=rms_norm))
    assert table.implementations["rms_norm"].source == "device"
    assert table.implementations["rms_norm"].where.endswith(":rms_norm")
    assert table.implementations["add_rms_norm"].source == "reference"


def test_override_of_a_required_op_needs_no_feature():
    table = compile_ops(device_with({}, linear=lambda self, weight, x, bias=None, out=None: x))
    assert table.implementations["linear"].source == "device"


def test_function_set_on_the_instance_counts_as_an_override():
    device = device_with({"op:gelu": 1})
    device.gelu = lambda x, tanh, out=None: x
    assert compile_ops(device).implementations["gelu"].source == "device"


def test_features_that_are_no_ops_are_left_alone():
    compile_ops(device_with({"unheard_of": 7}))


@pytest.mark.parametrize(
    ("features", "overrides", "message"),
    [
        ({}, {"rms_norm": rms_norm}, r'OtherDevice overrides rms_norm but does not declare it. Add "op:rms_norm": 1'),
        ({"op:rms_norm": 1}, {}, r"OtherDevice declares op:rms_norm but does not override Device.rms_norm"),
        ({"op:rms_norm": 2}, {"rms_norm": rms_norm}, r"op:rms_norm version 2; this pageport serves 1"),
        ({"op:moe": 1}, {}, r"op:moe, an op this pageport does not know. It knows rms_norm, "),
        ({"graph": 1}, {}, r"OtherDevice declares graph but does not override Device.capture"),
        ({"graph": 7}, {"capture": capture}, r"declares graph version 7; this pageport serves 1"),
        ({}, {"capture": capture}, r'OtherDevice overrides capture but does not declare it. Add "graph": 1'),
        ({"op:linear": 1}, {}, r"op:linear, but linear is part of the interface itself. Remove the feature"),
    ],
)
def test_disagreement_names_the_device_the_op_and_the_cure(features, overrides, message):
    with pytest.raises(BackendError, match=message):
        compile_ops(device_with(features, **overrides))


def test_strict_asks_for_no_rope_where_the_device_rotates_and_writes_in_one():
    features = {f"op:{op}": 1 for op in HOT_OPS if op in OPTIONAL_OPS and op != "rope"} | {"op:rope_write_kv": 1}
    overrides = {op: (lambda self, *arguments: None) for op in (*HOT_OPS, "rope_write_kv") if op != "rope"}
    compile_ops(device_with(features, **overrides), strict=True)


def test_strict_refuses_the_reference_for_hot_ops_and_names_them():
    features = {f"op:{op}": 1 for op in HOT_OPS if op in OPTIONAL_OPS}
    overrides = {op: (lambda self, *arguments: None) for op in HOT_OPS}
    compile_ops(device_with(features, **overrides), strict=True)
    del overrides["rope"], features["op:rope"]
    with pytest.raises(BackendError, match="leaves rope to the plain-torch reference, which --strict-ops refuses"):
        compile_ops(device_with(features, **overrides), strict=True)
    compile_ops(device_with(features, **overrides))
