"""What a device does not declare is refused by name."""

import pytest

from pageport.backend import AttentionParams, Capabilities
from pageport.backend.coverage import check_attention, check_kv
from pageport.errors import UnsupportedFeature

from .conftest import PlainDevice, kv_spec

CAUTIOUS = Capabilities(block_sizes=(4,))


@pytest.mark.parametrize(
    ("variant", "value"), [("sliding_window", 8), ("softcap", 30.0), ("sinks", object()), ("alibi", object())]
)
def test_undeclared_attention_variant_is_refused_not_dropped(variant, value):
    """A backend that cannot cap is not used silently (ARC-01)."""
    params = AttentionParams(scale=1.0, **{variant: value})
    with pytest.raises(UnsupportedFeature, match=f"attention variant {variant}; it does none"):
        check_attention(CAUTIOUS, params)
    check_attention(Capabilities(attention_variants=(variant,)), params)


def test_undeclared_cache_kind_is_refused():
    with pytest.raises(UnsupportedFeature, match="cache kind sliding; it does full"):
        check_kv(CAUTIOUS, kv_spec(kind="sliding"))


def test_head_sizes_count_only_when_the_device_lists_some():
    check_kv(CAUTIOUS, kv_spec(head_size=24))
    with pytest.raises(UnsupportedFeature, match="head size 24; it does 64, 128"):
        check_kv(Capabilities(block_sizes=(4,), head_sizes=(64, 128)), kv_spec(head_size=24))


def test_device_refuses_what_its_capabilities_leave_out():
    class WindowsOnly(PlainDevice):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(attention_variants=("sliding_window",))

    device = WindowsOnly()
    device.check_attention(kv_spec(), 4, AttentionParams(scale=1.0, sliding_window=8))
    with pytest.raises(UnsupportedFeature, match="attention variant softcap; it does sliding_window"):
        device.check_attention(kv_spec(), 4, AttentionParams(scale=1.0, sliding_window=8, softcap=30.0))
