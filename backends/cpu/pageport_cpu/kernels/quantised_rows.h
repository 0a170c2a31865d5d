// Activations as int8, with scales and sums a product needs, in blocks of rows laid out group by group.
#pragma once

#include <algorithm>
#include <limits>

#include "elements.h"
#include "panels.h"
#include "rounding.h"

namespace pageport {

// Where the numbers of a group lie in a block of `rows` rows: the integers of each row, then a float32 scale, a
// float32 shift (scale · sum of integers, which minima are multiplied by) and SPLITS int32 first sums a row. Groups that
// share a scale have those numbers with the first of them.
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

// Groups that share a scale where each output has one scale for all its weights: sums are then scaled for every 96
// inputs, which takes a twentieth off a product and adds half a percent to a small model's perplexity.
constexpr int CHANNEL_GROUPS = 3;

// One row of activations; groups whose largest value is below 1e-36 count as zeros.
template <class Element>
class RowQuantiser {
public:
    RowQuantiser(const Element* x, int64_t features) : x_(x), features_(features) {}

    // Fills in a row of a block: integers, scales, and sums that start so that `offset` comes off all weights.
    void fill(uint8_t* block, int row, RowsLayout layout, int offset) const {
        if (layout.splits == 1) fill_groups<1, 1>(block, row, layout, offset);
        else fill_groups<2, 1>(block, row, layout, offset);
    }

    // The same with a scale for CHANNEL_GROUPS groups each, below 2: a power of two is taken out of all scales, so that
    // sums of many products cannot overflow where the result does not. It stands in place of the first group's shift.
    void fill_for_channels(uint8_t* block, int row, RowsLayout layout, int offset) const {
        fill_groups<1, CHANNEL_GROUPS>(block, row, layout, offset);
        take_out_factor(block, row, layout);
    }

private:
    static constexpr int VECTORS = GROUP / LANES;

    void take_out_factor(uint8_t* block, int row, RowsLayout layout) const {
        const int64_t scales_apart = CHANNEL_GROUPS * layout.bytes();
        const int64_t count = (features_ + CHANNEL_GROUPS * GROUP - 1) / (CHANNEL_GROUPS * GROUP);
        uint8_t* scales = block + layout.scale() + row * 4;
        int32_t largest = 0;
        for (int64_t i = 0; i < count; ++i) {
            // Floats that are not negative are ordered as their bits are.
            const int32_t bits = read_integer(scales + i * scales_apart);
            largest = bits > largest ? bits : largest;
        }
        const int32_t exponent = largest & 0x7f800000, one = 0x3f800000;
        const bool is_plain = exponent > 0 && exponent < 0x7f800000;
        float factor, inverse;
        const int32_t factor_bits = is_plain ? exponent : one, inverse_bits = 2 * one - factor_bits;
        std::memcpy(&factor, &factor_bits, 4);
        std::memcpy(&inverse, &inverse_bits, 4);
        for (int64_t i = 0; i < count; ++i) {
            uint8_t* scale = scales + i * scales_apart;
            write_word(scale, read_float(scale) * inverse);
        }
        write_word(block + layout.shift() + row * 4, factor);
    }

    // Groups of GROUPS share a scale.
    template <int SPLITS, int GROUPS>
    void fill_groups(uint8_t* block, int row, RowsLayout layout, int offset) const {
        constexpr int COUNT = GROUPS * VECTORS;
        for (int64_t first = 0; first < features_; first += GROUPS * GROUP, block += GROUPS * layout.bytes()) {
            const int64_t groups = std::min<int64_t>(GROUPS, (features_ - first + GROUP - 1) / GROUP);
            Floats x[COUNT];
            load_vectors(first, x, COUNT);
            float scale = largest_number(x, COUNT) * (1.0f / 127.0f), sums[SPLITS], sum = 0.0f;
            // Integers of what is not finite do not matter: the scale carries it.
            if (!round_all<SPLITS, COUNT>(x, scale, sums)) scale = std::numeric_limits<float>::quiet_NaN();
            for (int64_t group = 0; group < groups; ++group) {
                auto* integers = reinterpret_cast<int8_t*>(block + group * layout.bytes() + row * GROUP);
                for (int i = 0; i < VECTORS; ++i) store_int8(integers + i * LANES, x[group * VECTORS + i]);
            }
            for (int split = 0; split < SPLITS; ++split) {
                sum += sums[split];
                write_word(block + layout.start(split) + row * 4, -offset * static_cast<int32_t>(sums[split]));
            }
            write_word(block + layout.scale() + row * 4, scale);
            write_word(block + layout.shift() + row * 4, scale * sum);
        }
    }

    void load_vectors(int64_t first, Floats* x, int count) const {
        for (int i = 0; i < count; ++i) {
            const int64_t left = features_ - first - i * LANES;
            if (left >= LANES)
                x[i] = load(x_ + first + i * LANES);
            else
                x[i] = left > 0 ? load_first(x_ + first + i * LANES, static_cast<int>(left)) : broadcast(0.0f);
        }
    }

    // Turns numbers into whole ones, and sums SPLITS parts of them; false if any is NaN or infinite.
    template <int SPLITS, int COUNT>
    static bool round_all(Floats* x, float scale, float* sums) {
        constexpr int PART = COUNT / SPLITS;
        // False for NaN too.
        if (!(scale >= 0x1p-126f)) {
            const bool is_finite = poison(x, COUNT) == 0.0f;
            for (int i = 0; i < COUNT; ++i) x[i] = broadcast(0.0f);
            for (int split = 0; split < SPLITS; ++split) sums[split] = 0.0f;
            return is_finite;
        }
        const Floats inverse = broadcast(1.0f / scale);
        for (int i = 0; i < COUNT; ++i) x[i] = round_even(x[i] * inverse);
        bool is_finite = true;
        for (int split = 0; split < SPLITS; ++split) {
            Floats total = x[split * PART];
            for (int i = 1; i < PART; ++i) total = total + x[split * PART + i];
            sums[split] = reduce_add(total);
            // An infinite x has an infinite scale, whose inverse is 0: their product is NaN.
            if (sums[split] == sums[split]) continue;
            sums[split] = 0.0f;
            is_finite = false;
        }
        return is_finite;
    }

    const Element* x_;
    int64_t features_;
};

}  // namespace pageport
