"""Before the first step, the device is asked about every layer's attention."""

import pytest

from pageport.config import EngineConfig, ModelConfig
from pageport.engine.builder import build_engine_on, open_model
from pageport.errors import UnsupportedFeature
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.tiny_model import write_tiny_llama


class NoWindowsOverGroups(ReferenceDevice):
    """Refuses two things together, each of which it does alone: no capability can say that."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int | None]] = []

    def check_attention(self, spec, num_heads, params) -> None:
        super().check_attention(spec, num_heads, params)
        self.asked.append((spec.num_kv_heads, num_heads, params.sliding_window))
        if params.sliding_window is not None and num_heads > spec.num_kv_heads:
            raise UnsupportedFeature("This device has no sliding windows over shared KV heads.")


def build(device, folder):
    config = EngineConfig(model=ModelConfig(model=str(folder)))
    build_engine_on(device, open_model(config.model), config, backend_name="test").close()


def test_each_layer_is_asked_for_with_its_heads_and_window(tmp_path):
    device = NoWindowsOverGroups()
    build(device, write_tiny_llama(tmp_path))
    assert device.asked == [(2, 6, None), (2, 6, None)]


def test_what_the_device_refuses_stops_the_start(tmp_path):
    device = NoWindowsOverGroups()
    with pytest.raises(UnsupportedFeature, match="no sliding windows over shared KV heads"):
        build(device, write_tiny_llama(tmp_path, sliding_window=16))
    assert device.asked == [(2, 6, 16)]
