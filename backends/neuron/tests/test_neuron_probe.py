"""The probe says what is there, knows PyPI's placeholder, and counts logical cores."""

from dataclasses import fields
from pathlib import Path

import pytest

from pageport.backend import Probe
from pageport.errors import BackendUnavailable, ConfigurationError, UnsupportedFeature
from pageport_neuron.options import NeuronOptions
from pageport_neuron.plugin import NeuronBackend, find_devices


def machine(root: Path, chips: int, version: str | None, cores: str | None = None) -> Probe:
    (root / "dev").mkdir()
    for number in range(chips):
        (root / f"dev/neuron{number}").touch()
        if cores is not None:
            folder = root / f"sys/devices/virtual/neuron_device/neuron{number}"
            folder.mkdir(parents=True)
            (folder / "core_count").write_text(cores)
    if version is not None:
        information = root / f"torch_neuronx-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n")
    return find_devices(root, [str(root)])


@pytest.mark.parametrize(
    ("chips", "version", "words"),
    [
        (0, None, "none here (/dev/neuron0 is missing); torch-neuronx is not installed, it comes from AWS's own index"),
        (2, "1.0", "2 found; torch-neuronx 1.0 is PyPI's placeholder, not the package: uninstall it"),
        (0, "2.14.0", "none here (/dev/neuron0 is missing); torch-neuronx 2.14.0 is installed"),
    ],
)
def test_what_is_missing_is_named(tmp_path, chips, version, words):
    probe = machine(tmp_path, chips, version)
    assert probe.count == 0
    assert words in probe.reason


@pytest.mark.parametrize(("cores", "count"), [("8\n", 8), (None, 2), ("not a number", 2)])
def test_logical_cores_are_counted_as_far_as_the_driver_tells(tmp_path, monkeypatch, cores, count):
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    assert machine(tmp_path, 2, "2.14.0", cores).count == count


def test_one_physical_core_can_be_one_logical_core(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert machine(tmp_path, 1, "2.14.0", "8").count == 8


def test_a_device_that_is_not_there_is_refused_by_its_number():
    with pytest.raises(BackendUnavailable, match="no Neuron device 3: Neuron chips: none here"):
        NeuronBackend().open(3, {})


def test_options_are_read():
    options = NeuronOptions.parse({"token_buckets": "64, 16", "sampling": "device", "tensor_parallel_degree": "1"})
    assert (options.token_buckets, options.request_buckets, options.sampling) == ((16, 64), (1, 8, 32), "device")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"token_bucket": "16"}, ConfigurationError, "no option 'token_bucket'"),
        ({"token_buckets": "16,x"}, ConfigurationError, "write positive whole numbers"),
        ({"request_buckets": ","}, ConfigurationError, "write at least one size"),
        ({"sampling": "both"}, ConfigurationError, "use host or device"),
        ({"tensor_parallel_degree": "4"}, UnsupportedFeature, "one core"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        NeuronOptions.parse(options)


def test_every_option_is_documented():
    text = (Path(__file__).parents[3] / "docs/neuron.md").read_text()
    assert [field.name for field in fields(NeuronOptions) if f"| `{field.name}` |" not in text] == []
