// Attention over a cache of 8-bit integers: queries and weights are rounded to 8 bits as well, and their products with
// keys and values are summed exactly.
//
// Keys lie as [kv_heads, features / 4, block_size, 4] and values as [kv_heads, block_size / 4, features, 4]: what is
// summed lies side by side, four at a time, as the sums of `integer_sums.h` want it. 128 is added to keys.
#pragma once

#include "attention_rows.h"

namespace pageport {

// Rows and groups of OUTPUTS whose sums fit the registers.
constexpr int INTEGER_ROWS = LANES == 16 ? MOST_ROWS : 3;
constexpr int INTEGER_GROUPS = LANES == 16 ? 4 : 1;

// scores[row, group] = Σ over features of query[row] * keys[first + group].
template <int ROWS, int GROUPS>
void multiply_keys(const IntegerRows& query, int row, const Tile<Int8>& tile, int first, int64_t quads, float* scores) {
    const Int8* keys[GROUPS];
    Sums sums[GROUPS][ROWS];
    UNROLLED
    for (int group = 0; group < GROUPS; ++group) {
        keys[group] = tile.keys[(first + group) * OUTPUTS / LANES];
        UNROLLED
        for (int i = 0; i < ROWS; ++i) sums[group][i] = sums_of(query.start[row + i]);
    }
    const uint8_t* integers = query.integers + row * query.stride;
    for (int64_t quad = 0; quad < quads; ++quad) {
        const RowInputs<ROWS> inputs(integers + quad * 4, query.stride);
        tile.ahead->fetch<GROUPS>();
        UNROLLED
        for (int group = 0; group < GROUPS; ++group) {
            const int64_t offset = quad * tile.key_stride;
            const Quad key = load_quad(&keys[group][offset].bits);
            add_quad<ROWS>(key, inputs, sums[group]);
        }
    }
    UNROLLED
    for (int group = 0; group < GROUPS; ++group)
        UNROLLED
        for (int i = 0; i < ROWS; ++i) {
            const Outputs products = to_outputs(sums[group][i]) * broadcast(query.unit[row + i]);
            store_outputs(scores + (row + i) * TILE_KEYS + (first + group) * OUTPUTS, products);
        }
}

// sums[row, group] += Σ over keys of weights[row] * values[column + group], for quads of keys first … last - 1.
template <int ROWS, int GROUPS>
void multiply_values(const IntegerRows& weights, int row, const Tile<Int8>& tile, int first, int last, int64_t column,
                     float* result, int64_t result_stride) {
    Sums sums[GROUPS][ROWS];
    UNROLLED
    for (int group = 0; group < GROUPS; ++group)
        UNROLLED
        for (int i = 0; i < ROWS; ++i) sums[group][i] = sums_of(0);
    const uint8_t* integers = weights.integers + row * weights.stride;
    // A power of two, by which dividing would take longer than the products.
    const int segment_bits = __builtin_ctz(tile.segment), within_segment = tile.segment - 1;
    for (int key = first * 4; key < last * 4; key += 4) {
        const int segment = key >> segment_bits;
        const int64_t offset = (key & within_segment) * tile.value_stride + column * 4;
        const Int8* values = tile.values[segment] + offset;
        const RowInputs<ROWS> inputs(integers + key, weights.stride);
        tile.ahead->fetch<GROUPS>();
        UNROLLED
        for (int group = 0; group < GROUPS; ++group) {
            const Quad value = load_quad(&values[group * QUAD_BYTES].bits);
            add_weighted<ROWS>(value, inputs, sums[group]);
        }
    }
    UNROLLED
    for (int group = 0; group < GROUPS; ++group)
        UNROLLED
        for (int i = 0; i < ROWS; ++i) {
            float* to = result + (row + i) * result_stride + column + group * OUTPUTS;
            const Floats unit = broadcast(weights.unit[row + i]);
            store_outputs(to, fma(to_outputs(sums[group][i]), unit, load_outputs(to)));
        }
}

}  // namespace pageport
