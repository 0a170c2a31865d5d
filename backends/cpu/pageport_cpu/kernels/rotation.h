// The rotation of keys and queries that spreads a large feature over its neighbours before keys are rounded: products
// of both stay as they are, and what rounding takes from a large feature no longer meets the same large feature of
// every query (arXiv:2404.00456).
#pragma once

#include "elements.h"

namespace pageport {

// Features that are rotated together: the largest power of two that divides a head's size. 1: none.
constexpr int64_t rotated_features(int64_t size) { return size & -size; }

// Lane i becomes lane i ^ DISTANCE, a power of two.
#if defined(__AVX512F__)
template <int DISTANCE>
inline Floats swap_lanes(Floats a) {
    if constexpr (DISTANCE == 1) return {_mm512_permute_ps(a.v, 0xb1)};
    else if constexpr (DISTANCE == 2) return {_mm512_permute_ps(a.v, 0x4e)};
    else if constexpr (DISTANCE == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
    else return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
}
#elif defined(__AVX2__)
template <int DISTANCE>
inline Floats swap_lanes(Floats a) {
    if constexpr (DISTANCE == 1) return {_mm256_permute_ps(a.v, 0xb1)};
    else if constexpr (DISTANCE == 2) return {_mm256_permute_ps(a.v, 0x4e)};
    else return {_mm256_permute2f128_ps(a.v, a.v, 0x01)};
}
#else
template <int DISTANCE>
inline Floats swap_lanes(Floats a) {
    return each_lane([&](int i) { return a.v[i ^ DISTANCE]; });
}
#endif

// Sums of lanes that are DISTANCE apart go to the lower one, their differences to the upper one.
template <int DISTANCE>
inline Floats rotate_lanes(Floats a) {
    static constexpr struct Signs {
        float values[LANES] = {};
        constexpr Signs() {
            for (int i = 0; i < LANES; ++i) values[i] = i & DISTANCE ? -1.0f : 1.0f;
        }
    } signs;
    return fma(a, load(signs.values), swap_lanes<DISTANCE>(a));
}

// Multiplies each `rotated_features(size)` numbers in a row by the matrix of 1 and -1 that Sylvester builds (Walsh and
// Hadamard's transform), in place.
inline void rotate(float* x, int64_t size) {
    const int64_t together = rotated_features(size);
    each_vector(size, [&](int64_t i, auto load, auto store) {
        Floats a = load(x + i);
        if (together > 1) a = rotate_lanes<1>(a);
        if (together > 2) a = rotate_lanes<2>(a);
        if constexpr (LANES > 4) {
            if (together > 4) a = rotate_lanes<4>(a);
        }
        if constexpr (LANES > 8) {
            if (together > 8) a = rotate_lanes<8>(a);
        }
        store(x + i, a);
    });
    for (int64_t distance = LANES; distance < together; distance *= 2) {
        for (int64_t first = 0; first < size; first += 2 * distance) {
            for (int64_t i = first; i < first + distance; i += LANES) {
                const Floats a = load(x + i), b = load(x + i + distance);
                store(x + i, a + b);
                store(x + i + distance, a - b);
            }
        }
    }
}

}  // namespace pageport
