"""Backends open their device with its class of architectures, behind the module that drives it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pageport_cuda.device
import pageport_rocm.device
import pageport_xpu.device
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport_cuda.plugin import CudaBackend
from pageport_rocm.plugin import RocmBackend
from pageport_triton.architectures import AMD_CLASSES, INTEL, INTERPRETER, amd_class, nvidia_class
from pageport_triton.configurations import configuration_of
from pageport_triton.op_configurations import OP_CONFIGURATIONS
from pageport_xpu.plugin import XpuBackend

from .recording_accelerator import RecordingModule


def fake_torch(hip: str | None = None, **more: Any) -> Any:
    """Return the parts of torch that a device module looks at."""
    module = RecordingModule()
    vars(module).update(more)
    return SimpleNamespace(
        device=torch.device, cuda=module, xpu=module, version=SimpleNamespace(hip=hip), __version__="2.11.0+x"
    )


@pytest.mark.parametrize(
    ("capability", "name"),
    [((8, 0), "sm80"), ((8, 9), "sm80"), ((9, 0), "sm90"), ((10, 0), "sm100"), ((10, 3), "sm100"), ((12, 0), "sm80")],
)
def test_nvidia_gpu_has_a_class(capability, name):
    assert nvidia_class(capability) == name


def test_gpus_without_kernels_are_refused():
    with pytest.raises(BackendUnavailable, match=r"7\.5 is older than 8\.0"):
        nvidia_class((7, 5))
    with pytest.raises(BackendUnavailable, match="no kernels for gfx1030, only for gfx90a, gfx942"):
        amd_class("gfx1030")


@pytest.mark.parametrize("name", ["sm80", "sm90", "sm100", *AMD_CLASSES, INTEL, INTERPRETER])
def test_every_class_is_in_both_tables(name):
    assert configuration_of(name) is not None
    assert OP_CONFIGURATIONS[name].architecture == name


def test_cuda_device_is_opened(monkeypatch):
    module = fake_torch(get_device_capability=lambda device: (9, 0))
    monkeypatch.setattr(pageport_cuda.device, "torch", module)
    device = pageport_cuda.device.open_device(1)
    assert module.cuda.calls == [("set_device", torch.device("cuda", 1))]
    assert device.torch_device == torch.device("cuda", 1)
    assert device.capabilities.collective_backend == "nccl"
    assert device.capabilities.graph_sizes[:6] == (1, 2, 4, 8, 16, 24)


def test_rocm_device_is_opened_where_torch_is_built_for_it(monkeypatch):
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(
        pageport_rocm.device, "torch", fake_torch(hip="7.1", get_device_properties=lambda device: properties)
    )
    device = pageport_rocm.device.open_device(0)
    assert device._ops.architecture == "gfx942"
    assert "graph" in device.capabilities.features
    monkeypatch.setattr(pageport_rocm.device, "torch", fake_torch(hip=None))
    with pytest.raises(BackendUnavailable, match=r"torch 2\.11\.0\+x is not built for ROCm"):
        pageport_rocm.device.open_device(0)


@pytest.mark.parametrize("has_graphs", [False, True])
def test_xpu_device_replays_graphs_where_torch_has_them(monkeypatch, has_graphs):
    more = {"XPUGraph": object} if has_graphs else {}
    monkeypatch.setattr(pageport_xpu.device, "torch", fake_torch(**more))
    device = pageport_xpu.device.open_device(0)
    assert device.torch_device == torch.device("xpu", 0)
    assert device.capabilities.collective_backend == "xccl"
    assert ("graph" in device.capabilities.features) is has_graphs
    assert bool(device.capabilities.graph_sizes) is has_graphs


@pytest.mark.parametrize("backend", [CudaBackend, RocmBackend, XpuBackend])
def test_unknown_option_and_absent_device_are_refused(backend):
    with pytest.raises(ConfigurationError, match=f"Unknown option 'colour' of the {backend.name} backend"):
        backend().open(0, {"colour": "red"})
    with pytest.raises(BackendUnavailable, match=r"There is no .* GPU 99: "):
        backend().open(99, {})
