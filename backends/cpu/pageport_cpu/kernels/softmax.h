// Softmax whose terms come in pieces (arXiv:1805.02867), in powers of two.
#pragma once

#include <limits>

#include "simd.h"

namespace pageport {

#if defined(__AVX512F__)
// p * 2^n, whatever n; too small a product is rounded once.
inline Floats scale_by_power(Floats p, Floats n) { return {_mm512_scalef_ps(p.v, n.v)}; }
#else
// p * 2^n; 0 for n below -126.
inline Floats scale_by_power(Floats p, Floats n) {
    const Floats lowest = broadcast(-126.0f);
    return select(less(n, lowest), broadcast(0.0f), p * power_of_two(max(lowest, n)));
}
#endif

// 2^x within 1 unit in the last place for x from -126 to 0; 0 far below; NaN stays NaN.
inline Floats exp2(Floats x) {
    // The order of the operands lets NaN through.
    const Floats clamped = max(broadcast(-200.0f), x);
    const Floats n = round_even(clamped);
    const Floats r = clamped - n;
    Floats p = broadcast(1.5353362e-4f);
    p = fma(p, r, broadcast(1.3398875e-3f));
    p = fma(p, r, broadcast(9.6184374e-3f));
    p = fma(p, r, broadcast(5.5503325e-2f));
    p = fma(p, r, broadcast(2.4022648e-1f));
    p = fma(p, r, broadcast(6.9314720e-1f));
    p = fma(p, r, broadcast(1.0f));
    return scale_by_power(p, n);
}

inline float exp2_scalar(float x) {
    float result[LANES];
    store(result, exp2(broadcast(x)));
    return result[0];
}

constexpr float LOG2_E = 1.44269504f;
// The peak of no scores. Finite, so that differences of peaks are never NaN.
constexpr float NO_PEAK = std::numeric_limits<float>::lowest();

// What some rows have seen: Σ 2^(score - peak) · value, and the sum of the weights, kept lane by lane.
struct Partial {
    float* peak;   // [rows]
    float* total;  // [rows, LANES]
    float* sums;   // [rows, sums_stride]
    int64_t sums_stride;

    static int64_t floats(int64_t rows, int64_t sums_stride) {
        return (rows + 15) / 16 * 16 + rows * (LANES + sums_stride);
    }

    Partial(float* memory, int64_t rows, int64_t sums_stride)
        : peak(memory + rows * (LANES + sums_stride)),
          total(memory + rows * sums_stride),
          sums(memory),
          sums_stride(sums_stride) {}

    void clear(int64_t rows) {
        for (int64_t i = 0; i < rows; ++i) peak[i] = NO_PEAK;
        std::memset(total, 0, rows * LANES * sizeof(float));
        std::memset(sums, 0, rows * sums_stride * sizeof(float));
    }

    // Multiplies what `row` has summed by `factor`.
    void scale(int64_t row, float factor) {
        const Floats by = broadcast(factor);
        store(total + row * LANES, load(total + row * LANES) * by);
        float* sum = sums + row * sums_stride;
        for (int64_t i = 0; i < sums_stride; i += LANES) store(sum + i, load(sum + i) * by);
    }

    // Lets `row` continue with a peak that is at least its old one; returns the new one.
    float raise_peak(int64_t row, float candidate) {
        const float before = peak[row];
        // A NaN becomes the peak, and all that follows NaN.
        if (candidate <= before) return before;
        peak[row] = candidate;
        scale(row, exp2_scalar(before - candidate));
        return candidate;
    }

    // Adds what the same rows have seen elsewhere.
    void merge(const Partial& other, int64_t rows) {
        for (int64_t row = 0; row < rows; ++row) {
            const Floats weight = broadcast(exp2_scalar(other.peak[row] - raise_peak(row, other.peak[row])));
            float* to = total + row * LANES;
            store(to, fma(load(other.total + row * LANES), weight, load(to)));
            to = sums + row * sums_stride;
            const float* from = other.sums + row * sums_stride;
            for (int64_t i = 0; i < sums_stride; i += LANES) store(to + i, fma(load(from + i), weight, load(to + i)));
        }
    }
};

}  // namespace pageport
