"""What the suite says of devices that rotate keys before they are rounded, and of those that only say so."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from pageport.backend import AttentionParams, Backend, Capabilities
from pageport.backend.batch import AttentionBatch
from pageport.testing.conformance import Context
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.attention_verdict import check_case
from pageport.testing.conformance.declared import check_features
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.rotating_device import RotatingDevice

E5M2 = "float8_e5m2"
CASE = AttentionCase(
    rows=(Row(1), Row(17), Row(40), Row(9, 9), Row(300, 20)),
    compute_dtype="float32",
    kv_dtype=E5M2,
    block_size=16,
    head_size=64,
)


class SaysNothing(RotatingDevice):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, features={})


class DoesNothing(ReferenceDevice):
    @property
    def capabilities(self) -> Capabilities:
        return RotatingDevice([E5M2]).capabilities


class RotatesKeysOnly(RotatingDevice):
    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        ReferenceDevice.attention(self, pool, layer, query, params, batch, out)


def check(device: ReferenceDevice, case: AttentionCase) -> None:
    context = Context(Backend)
    context._device = device
    check_case(context, case)


@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("head_size", [1, 7, 48, 64, 80])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", E5M2])
def test_a_device_that_rotates_keys_and_queries_is_right(dtype, head_size, has_scales):
    check(RotatingDevice([dtype]), replace(CASE, kv_dtype=dtype, head_size=head_size, has_scales=has_scales))


def test_other_caches_are_left_as_they_are():
    for dtype in ("float32", "float8_e4m3fn", "int8"):
        check(RotatingDevice([E5M2]), replace(CASE, kv_dtype=dtype))


@pytest.mark.parametrize("device", [SaysNothing([E5M2]), DoesNothing(), RotatesKeysOnly([E5M2])])
def test_a_device_that_does_not_do_as_it_says_is_wrong(device):
    with pytest.raises(AssertionError, match="values are wrong"):
        check(device, CASE)


@pytest.mark.parametrize("dtype", ["int8", "float32", E5M2])
def test_only_eight_bit_floats_that_are_kept_can_be_rotated(dtype):
    rotating = RotatingDevice([dtype]).capabilities
    with pytest.raises(AssertionError, match=f"rotated_keys:{dtype}"):
        check_features(replace(rotating, kv_dtypes=("float32", "float8_e4m3fn", "int8")))
