"""The rows behind ``pageport backends``."""

import pytest

from pageport.backend import Backend, Capabilities, Probe
from pageport.backend.discovery import BackendEntry, Discovery
from pageport.backend.explain import backend_rows, explain
from pageport.errors import BackendUnavailable

from .conftest import PlainDevice


class KeepingDevice(PlainDevice):
    """Keeps one scheme, quantises to another and replaces one op."""

    closed = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            weight_schemes=("q8_0",), quantisations=("int8",), quantises_activations=True, features={"op:gelu": 1}
        )

    def gelu(self, x, tanh, out=None):
        return x

    def close(self) -> None:
        KeepingDevice.closed += 1


class KeepingBackend(Backend):
    name = "keeping"

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1)

    def open(self, ordinal, options, rank=None) -> KeepingDevice:
        return KeepingDevice()


FOUND = Discovery(
    entries=(
        BackendEntry(name="broken", distribution="b", version="2", error="it fell."),
        BackendEntry(
            name="keeping", distribution="k", version="1", backend=KeepingBackend, probe=KeepingBackend.probe()
        ),
    )
)


def test_rows_put_usable_backends_first_and_give_reasons():
    assert backend_rows(FOUND) == [
        ("keeping", "k 1", True, 1, "1 device"),
        ("broken", "b 2", False, 0, "it fell."),
    ]


def test_explanation_says_what_serves_each_op_and_what_becomes_of_weights():
    explanation = explain(FOUND, "keeping")
    ops = {row.name: row for row in explanation.ops}
    assert [ops[name].source for name in ("gelu", "rope", "rope_write_kv")] == ["device", "reference", "parts"]
    assert (ops["gelu"].is_hot, ops["rope"].is_hot) == (False, True)
    weights = dict(explanation.weights)
    assert weights["q8_0"] == "kept as stored, activations are rounded"
    assert weights["q4_k"] == "dequantised to the compute dtype"
    assert weights["bf16"] == "converted to the compute dtype"
    assert weights["any, --quantization int8"] == "quantised to int8, activations are rounded"
    assert dict(explanation.capabilities)["mixed_batches"] == "yes"


def test_explained_device_is_closed_again():
    before = KeepingDevice.closed
    explain(FOUND, "keeping")
    assert KeepingDevice.closed == before + 1


def test_explaining_what_cannot_be_opened_gives_its_reason():
    with pytest.raises(BackendUnavailable, match="it fell"):
        explain(FOUND, "broken")
