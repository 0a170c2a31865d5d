"""The probe says what is there, knows PyPI's placeholder, and promises nothing."""

from pathlib import Path

import pytest

from pageport.errors import BackendUnavailable
from pageport_neuron.plugin import NeuronBackend, explain_absence


def machine(root: Path, devices: int, version: str | None) -> str:
    (root / "dev").mkdir()
    for number in range(devices):
        (root / f"dev/neuron{number}").touch()
    if version is not None:
        information = root / f"torch_neuronx-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {version}\n")
    return explain_absence(root, [str(root)])


@pytest.mark.parametrize(
    ("devices", "version", "words"),
    [
        (0, None, "none here (/dev/neuron0 is missing); torch-neuronx is not installed, it comes from AWS's own index"),
        (2, "1.0", "2 found; torch-neuronx 1.0 is PyPI's placeholder, not the package: uninstall it"),
        (1, "2.9.0.2.12", "1 found; torch-neuronx 2.9.0.2.12 is installed; this pageport cannot compute"),
    ],
)
def test_pieces_are_named_and_the_backend_says_it_cannot_compute_yet(tmp_path, devices, version, words):
    said = machine(tmp_path, devices, version)
    assert words in said
    assert said.endswith("this pageport cannot compute on Neuron devices yet. Use --backend cpu.")


def test_no_device_is_offered_or_opened():
    assert NeuronBackend.probe().count == 0
    with pytest.raises(BackendUnavailable, match="cannot compute on Neuron devices yet"):
        NeuronBackend().open(0, {})
