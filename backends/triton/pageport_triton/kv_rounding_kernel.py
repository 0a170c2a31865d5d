"""How numbers become those of the KV cache and back, in registers."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

LARGEST_E4M3 = tl.constexpr(448.0)
LARGEST_E5M2 = tl.constexpr(57344.0)
LARGEST_INT8 = tl.constexpr(127.0)
# Adding and subtracting this rounds a float32 below 2 ** 22 to a whole number, halves to even.
ROUNDING = tl.constexpr(12582912.0)


@triton.jit
def dequantised(stored, STORED: tl.constexpr, HAS_FLOAT8: tl.constexpr, dtype: tl.constexpr):
    """Return what the cache stores, without its scale."""
    if STORED == "float8_e4m3fn":
        if HAS_FLOAT8:
            result = stored.to(tl.float8e4nv, bitcast=True).to(dtype)
        else:
            # The bits of a float16 whose exponent is too small by 8; subnormal numbers stay such.
            bits = ((stored & 0x80).to(tl.uint16) << 8) | ((stored & 0x7F).to(tl.uint16) << 7)
            number = bits.to(tl.float16, bitcast=True) * 256.0
            result = tl.where((stored & 0x7F) == 0x7F, float("nan"), number).to(dtype)
    elif STORED == "float8_e5m2":
        # The upper half of a float16.
        result = (stored.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(dtype)
    elif STORED == "int8" and dtype == tl.bfloat16:
        # The upper half of a float32 holds it; a conversion would first look for NaN, at length on some GPUs.
        upper = stored.to(tl.float32).to(tl.int32, bitcast=True) >> 16
        result = upper.to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        result = stored.to(dtype)
    return result


@triton.jit
def to_float8(values, STORED: tl.constexpr):
    """Return the bits of float32 ``values``, rounded to nearest, halves to even, and saturated; NaN stays NaN."""
    is_e4m3: tl.constexpr = STORED == "float8_e4m3fn"
    dropped_bits: tl.constexpr = 20 if is_e4m3 else 21
    rebias: tl.constexpr = (120 << 3) if is_e4m3 else (112 << 2)
    smallest_normal: tl.constexpr = 2.0**-6 if is_e4m3 else 2.0**-14
    # The last bit of a float32 of this size is worth as much as the smallest subnormal number.
    alignment: tl.constexpr = 2.0**14 if is_e4m3 else 2.0**7
    largest: tl.constexpr = LARGEST_E4M3 if is_e4m3 else LARGEST_E5M2
    magnitudes = tl.minimum(tl.abs(values), largest)
    bits = magnitudes.to(tl.int32, bitcast=True)
    half_step: tl.constexpr = (1 << (dropped_bits - 1)) - 1
    normal = ((bits + half_step + ((bits >> dropped_bits) & 1)) >> dropped_bits) - rebias
    zero = tl.full(magnitudes.shape, alignment, tl.float32)
    subnormal = (magnitudes + zero).to(tl.int32, bitcast=True) - zero.to(tl.int32, bitcast=True)
    rounded = tl.where(magnitudes < smallest_normal, subnormal, normal)
    rounded = tl.where(values != values, 0x7F, rounded)
    sign = (values.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (rounded | sign).to(tl.uint8)


@triton.jit
def int8_scale(magnitudes, is_nan):
    """Return a row's scale from the largest magnitude and whether there is any NaN."""
    return tl.where(is_nan, float("nan"), tl.div_rn(magnitudes, LARGEST_INT8))


@triton.jit
def to_int8(values, scale):
    """Return ``values`` [rows, size] in steps of ``scale`` [rows]; NaN, which is in the scale, becomes 0."""
    steps = tl.div_rn(values, tl.where(scale == 0, 1.0, scale)[:, None])
    steps = tl.where(steps != steps, 0.0, steps)
    return (steps + ROUNDING - ROUNDING).to(tl.int8)


@triton.jit
def rounded_to(values, dtype: tl.constexpr, IS_INTERPRETED: tl.constexpr):
    """Return float32 ``values`` in ``dtype``, rounded to nearest: the interpreter cuts bfloat16 off."""
    if IS_INTERPRETED and dtype == tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
        values = tl.where(values != values, values, rounded)
    return values.to(dtype)
