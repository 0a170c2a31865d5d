"""Opening a core calls what the vendor documents, and says in one sentence what is missing."""

import os

import pytest
import torch

from pageport.backend import Probe
from pageport.backend.kv import Memory
from pageport.errors import BackendUnavailable
from pageport_neuron import device as device_module
from pageport_neuron.options import NeuronOptions
from pageport_neuron.plugin import NeuronBackend

from . import fake_torch_neuronx


@pytest.fixture
def machine(monkeypatch):
    """Two cores that are found; tensors "on" them lie in host memory, as this torch knows no other place."""
    monkeypatch.setattr(NeuronBackend, "probe", classmethod(lambda cls: Probe(count=8)))
    monkeypatch.setattr(device_module, "DEVICE_TYPE", "cpu")
    with fake_torch_neuronx.installed() as vendor:
        yield vendor


def test_a_core_is_opened_with_its_memory(machine):
    device = NeuronBackend().open(1, {})
    assert device.memory() == Memory(total=24 << 30, free=23 << 30, reserved_by_this_process=1 << 30)
    device.synchronize()
    assert machine.device_module.synchronized == [torch.device("cpu", 1)]
    assert device.capabilities.determinism == "none"


def test_a_core_that_the_runtime_does_not_see_is_refused(machine):
    with pytest.raises(BackendUnavailable, match="no Neuron device 2; torch_neuronx sees 2"):
        NeuronBackend().open(2, {})


def test_the_cache_folder_is_made_and_told_to_the_vendors_libraries(machine, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", "elsewhere")
    NeuronBackend().open(0, {"cache_dir": str(tmp_path / "programs")})
    assert os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"] == str(tmp_path / "programs")
    assert (tmp_path / "programs").is_dir()


def test_compiling_ahead_of_time_sets_the_mode_and_the_target(machine, monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_COMPILE_ONLY", "0")
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE")
    device = NeuronBackend().open_compiler({"target": "trn3"})
    assert device.torch_device == torch.device("cpu")
    assert (os.environ["TORCH_NEURONX_COMPILE_ONLY"], os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"]) == ("1", "trn3")


def test_a_package_without_the_native_device_is_named(machine, monkeypatch):
    monkeypatch.setattr(torch, "neuron", None)
    with pytest.raises(BackendUnavailable, match=r"has no torch\.neuron.*SDK 2\.33 or later"):
        NeuronBackend().open(0, {})


@pytest.mark.parametrize("open_it", [device_module.compiling_device, lambda o: device_module.HardwareDevice(o, 0)])
def test_without_the_package_the_index_is_named(open_it, monkeypatch):
    for name in ("TORCH_NEURONX_COMPILE_ONLY", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    with pytest.raises(BackendUnavailable, match=r"torch_neuronx cannot be imported.*AWS's own index"):
        open_it(NeuronOptions())
