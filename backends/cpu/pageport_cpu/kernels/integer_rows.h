// Rows of numbers rounded to 8 bits, as attention over a cache of 8-bit integers multiplies them.
#pragma once

#include "attention_work.h"
#include "integer_sums.h"
#include "rounding.h"

namespace pageport {

// Some rows of 8-bit integers, each of which stands for its row's unit times itself: queries from -127 to 127, or the
// weights of a tile's values from 0 to 255.
struct IntegerRows {
    uint8_t* integers;  // [rows, stride]
    int64_t stride;
    float unit[UNIT_ROWS];
    int32_t start[UNIT_ROWS];  // of queries: what takes the 128s that are added to keys out of their products

    void clear(int row) {
        std::memset(integers + row * stride, 0, stride);
        unit[row] = 0.0f;
        start[row] = 0;
    }

    // Rounds `count` vectors, a whole row.
    void round_query(int row, const Floats* x, int count) {
        const float inverse = find_unit(row, x, count, 127.0f);
        if (inverse == 0.0f) return;
        Floats total = broadcast(0.0f);
        for (int i = 0; i < count; ++i) {
            const Floats rounded = round_even(x[i] * broadcast(inverse));
            total = total + rounded;
            store_int8(reinterpret_cast<int8_t*>(integers + row * stride + i * LANES), rounded);
        }
        start[row] = CENTRED_BITS == 8 ? 0 : -128 * static_cast<int32_t>(reduce_add(total));
    }

    // Rounds COUNT vectors of weights, a whole row.
    template <int COUNT>
    void round_weights(int row, const Floats* x) {
        const Floats inverse = broadcast(find_unit(row, x, COUNT, 255.0f));
        for (int i = 0; i < COUNT; ++i) store_uint8(integers + row * stride + i * LANES, x[i] * inverse);
    }

private:
    // Sets the unit of `row`: NaN if a number is not finite. Returns its inverse; without one, 0 and a cleared row.
    float find_unit(int row, const Floats* x, int count, float most) {
        const bool is_nan = has_nan(poisons(x, count));
        const float largest = largest_number(x, count);
        if (!is_nan && largest >= 0x1p-118f) {
            unit[row] = largest * (1.0f / most);
            return most / largest;
        }
        clear(row);
        if (is_nan) unit[row] = std::numeric_limits<float>::quiet_NaN();
        return 0.0f;
    }
};

}  // namespace pageport
