// Activations as int8, with scales and sums a product needs, in blocks of rows laid out group by group.
#pragma once

#include "elements.h"
#include "panels.h"

namespace pageport {

// Where the numbers of a group lie in a block of `rows` rows: the integers of each row, then a float32 scale, a
// float32 shift (scale · sum of integers, which minima are multiplied by) and SPLITS int32 first sums a row.
struct RowsLayout {
    int rows;
    int splits;

    constexpr int64_t scale() const { return int64_t{rows} * GROUP; }
    constexpr int64_t shift() const { return scale() + rows * 4; }
    constexpr int64_t start(int split) const { return shift() + rows * 4 * (1 + split); }
    constexpr int64_t bytes() const { return start(splits); }
};

inline void write_word(uint8_t* to, float value) { std::memcpy(to, &value, 4); }
inline void write_word(uint8_t* to, int32_t value) { std::memcpy(to, &value, 4); }
inline int32_t read_integer(const uint8_t* p) {
    int32_t n;
    std::memcpy(&n, p, sizeof n);
    return n;
}

// Rounds to whole numbers, ties to even.
inline void store_int8(int8_t* p, Floats a) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
#elif defined(__AVX2__)
    const __m256i n = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
#else
    for (int i = 0; i < LANES; ++i) p[i] = static_cast<int8_t>(std::nearbyint(a.v[i]));
#endif
}

// The largest |x|; NaN if any is NaN or infinite.
inline float largest(const Floats* x, int count) {
    Floats most = broadcast(0.0f), poison = broadcast(0.0f);
    for (int i = 0; i < count; ++i) {
        most = max(most, abs(x[i]));
        poison = fma(x[i], broadcast(0.0f), poison);
    }
    return reduce_max(most) + reduce_add(poison);
}

// One row of activations; groups whose largest value is below 1e-36 count as zeros.
template <class Element>
class RowQuantiser {
public:
    RowQuantiser(const Element* x, int64_t features) : x_(x), features_(features) {}

    // Fills in a row of a block: a scale a group, and sums that start so that `offset` comes off all weights.
    void fill(uint8_t* block, int row, RowsLayout layout, int offset) const {
        for (int64_t first = 0; first < features_; first += GROUP, block += layout.bytes()) {
            Floats x[VECTORS];
            load_group(first, x);
            const float scale = largest(x, VECTORS) * (1.0f / 127.0f);
            int32_t sums[2];
            quantise(x, scale, reinterpret_cast<int8_t*>(block + row * GROUP), sums);
            write_word(block + layout.scale() + row * 4, scale);
            write_word(block + layout.shift() + row * 4, scale * static_cast<float>(sums[0] + sums[1]));
            if (layout.splits == 1) sums[0] += sums[1];
            for (int split = 0; split < layout.splits; ++split)
                write_word(block + layout.start(split) + row * 4, -offset * sums[split]);
        }
    }

private:
    static constexpr int VECTORS = GROUP / LANES;

    void load_group(int64_t first, Floats* x) const {
        for (int i = 0; i < VECTORS; ++i) {
            const int64_t left = features_ - first - i * LANES;
            if (left >= LANES)
                x[i] = load(x_ + first + i * LANES);
            else
                x[i] = left > 0 ? load_first(x_ + first + i * LANES, static_cast<int>(left)) : broadcast(0.0f);
        }
    }

    // Sums of the integers of either half.
    static void quantise(const Floats* x, float scale, int8_t* integers, int32_t* sums) {
        sums[0] = sums[1] = 0;
        // False for NaN too: its integers do not matter, the scale carries it.
        if (!(scale >= 0x1p-126f)) {
            std::memset(integers, 0, GROUP);
            return;
        }
        const Floats inverse = broadcast(1.0f / scale);
        Floats totals[2] = {broadcast(0.0f), broadcast(0.0f)};
        for (int i = 0; i < VECTORS; ++i) {
            const Floats rounded = round_even(x[i] * inverse);
            store_int8(integers + i * LANES, rounded);
            totals[2 * i / VECTORS] = totals[2 * i / VECTORS] + rounded;
        }
        sums[0] = static_cast<int32_t>(reduce_add(totals[0]));
        sums[1] = static_cast<int32_t>(reduce_add(totals[1]));
    }

    const Element* x_;
    int64_t features_;
};

}  // namespace pageport
