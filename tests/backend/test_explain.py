"""The rows behind ``pageport backends``."""

from dataclasses import replace
from typing import ClassVar

import pytest

from pageport.backend import Backend, Capabilities, Probe
from pageport.backend.discovery import BackendEntry, Discovery
from pageport.backend.explain import backend_rows, explain
from pageport.cli import backends as command
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


class StaticDevice(PlainDevice):
    """Runs whole models in plain torch."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            static_shapes=True, token_buckets=(1, 64), request_buckets=(1, 4, 8), context_buckets=(256, 1024)
        )


class CompilingDevice(StaticDevice):
    """Leaves the inherited program to a compiler."""

    def compile_graph(self, graph, bucket):
        return graph


class BuildingDevice(StaticDevice):
    """Has programs of its own."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, context_buckets=(), features={"whole_model": 1})

    def build_model(self, description, weights, pools, buckets):
        raise NotImplementedError


class KeepingBackend(Backend):
    name = "keeping"

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1)

    device: ClassVar[type[PlainDevice]] = KeepingDevice

    def open(self, ordinal, options, rank=None) -> PlainDevice:
        return self.device()


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


@pytest.mark.parametrize(
    ("device", "built_by", "compiled_by", "count"),
    [
        (StaticDevice, "pageport.backend.device:Device.build_model (inherited)", "nobody: it runs as plain torch", 8),
        (
            CompilingDevice,
            "pageport.backend.device:Device.build_model (inherited)",
            f"{__name__}:CompilingDevice.compile_graph",
            8,
        ),
        (BuildingDevice, f"{__name__}:BuildingDevice.build_model", "the program that it builds", 4),
    ],
)
def test_explanation_of_a_static_device_says_who_builds_and_compiles_which_programs(
    monkeypatch, capsys, device, built_by, compiled_by, count
):
    monkeypatch.setattr(KeepingBackend, "device", device)
    programs = explain(FOUND, "keeping").programs
    assert programs is not None
    # A prompt's last token and a lone decode have one shape.
    assert (programs.built_by, programs.compiled_by, programs.count) == (built_by, compiled_by, count)
    monkeypatch.setattr(command, "discover", lambda: FOUND)
    command.print_explanation("keeping", 0, {}, simulates=False)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"runs as whole programs {count} shapes" in printed
    assert "one prompt's next 1, 64 tokens" in printed
    assert "decodes of 1, 4, 8 requests" in printed
    contexts = "as long as the longest served" if device is BuildingDevice else "of 256, 1024 tokens"
    assert f"contexts {contexts}" in printed


def test_explanation_of_a_device_that_runs_op_by_op_names_no_programs():
    assert explain(FOUND, "keeping").programs is None


def test_explained_device_is_closed_again():
    before = KeepingDevice.closed
    explain(FOUND, "keeping")
    assert KeepingDevice.closed == before + 1


def test_explaining_what_cannot_be_opened_gives_its_reason():
    with pytest.raises(BackendUnavailable, match="it fell"):
        explain(FOUND, "broken")
