// The rows of a unit of work: queries read from the step, results written to it.
#pragma once

#include "attention_products.h"
#include "attention_work.h"
#include "integer_rows.h"
#include "rotation.h"
#include "softmax.h"

namespace pageport {

struct Attention {
    const void* query;  // [tokens, heads, head_size]
    void* out;          // [tokens, heads, value_head_size]
    const void* keys;   // one layer of a block: [kv_heads, head_size, block_size]
    const void* values;  // [kv_heads, block_size, value_head_size], readable for 64 bytes more
    // Where both are 8-bit integers, they lie as attention_integers.h says.
    const float* key_scales;  // null, or [kv_heads, block_size], as are those of values
    const float* value_scales;
    const int32_t* query_start_loc;  // [requests + 1]
    const int32_t* seq_lens;         // [requests]; 0 is padding
    const int32_t* block_table;      // [requests, block_table_stride]
    const float* sinks;              // null, or [heads], as are slopes
    const float* slopes;
    const float* k_scale;  // null, or what all stored keys are to be multiplied by
    const float* v_scale;
    int64_t num_requests, num_tokens;
    int64_t heads, kv_heads, head_size, value_head_size, block_size;
    int64_t query_token_stride, query_head_stride, out_token_stride, out_head_stride, block_table_stride;
    int64_t block_stride, scale_block_stride;
    int64_t dtype, stored_dtype;
    int64_t causal;
    int64_t window;  // 0: none
    double scale;
    double softcap;  // 0: none
};

// Whole vectors of any instruction set.
inline int64_t padded(int64_t size) { return (size + 15) / 16 * 16; }

struct KeyRange {
    int64_t first, last;  // the last one excluded
};

inline KeyRange seen_keys(const Attention& a, int64_t position, int64_t length) {
    const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
    return {first, std::max(first, a.causal != 0 ? std::min(length, position + 1) : length)};
}

inline int64_t first_tile(const KeyRange& keys) { return keys.first / TILE_KEYS * TILE_KEYS; }

// Keys of a tile that a row sees, counted from the tile's first.
struct TileRange {
    int first, last;

    bool empty() const { return first >= last; }
    int first_vector() const { return first / LANES; }
    int last_vector() const { return (last + LANES - 1) / LANES; }
};

inline TileRange within(const KeyRange& seen, int64_t tile_start) {
    return {static_cast<int>(std::max<int64_t>(0, seen.first - tile_start)),
            static_cast<int>(std::min<int64_t>(TILE_KEYS, seen.last - tile_start))};
}

// The rows of a unit, and what is computed of them. Ranges ascend from row to row.
struct Rows {
    int count;
    float* query;  // [rows, query_stride], scaled
    int64_t query_stride;
    float* scores;     // [rows, TILE_KEYS]: scores, then weights
    float* converted;  // one tile's keys and values in float32
    IntegerRows integers, weights;  // queries, and a tile's weights, for a cache of integers
    KeyRange seen[UNIT_ROWS];
    float position[UNIT_ROWS];
    float slope[UNIT_ROWS];
};

// Keys that any row of a unit sees.
inline KeyRange unit_keys(const Attention& a, const Unit& unit) {
    const int64_t group = a.heads / a.kv_heads, length = a.seq_lens[unit.request];
    const int64_t first = length - (a.query_start_loc[unit.request + 1] - a.query_start_loc[unit.request]);
    return {seen_keys(a, first + unit.first_row / group, length).first,
            seen_keys(a, first + (unit.first_row + unit.rows - 1) / group, length).last};
}

inline int64_t row_stride(const Attention& a) { return padded(a.head_size); }
inline int64_t partial_floats(const Attention& a, int64_t rows) {
    return Partial::floats(rows, padded(a.value_head_size));
}


// Reads the queries of one KV head of a unit.
template <class Stored>
void load_rows(const Attention& a, const Unit& unit, int32_t kv_head, Rows& rows) {
    const int64_t group = a.heads / a.kv_heads;
    const int64_t token = a.query_start_loc[unit.request];
    const int64_t length = a.seq_lens[unit.request];
    const int64_t first_position = length - (a.query_start_loc[unit.request + 1] - token);
    double factor = a.softcap > 0 ? a.scale / a.softcap : a.scale * 1.4426950408889634;
    factor *= LOADED_UNIT<Stored>;
    if (a.k_scale != nullptr) factor *= *a.k_scale;
    const Floats by = broadcast(static_cast<float>(factor));
    rows.count = unit.rows;
    rows.query_stride = row_stride(a);
    for (int row = 0; row < unit.rows; ++row) {
        const int64_t query = (unit.first_row + row) / group;
        const int64_t head = kv_head * group + (unit.first_row + row) % group;
        rows.seen[row] = seen_keys(a, first_position + query, length);
        rows.position[row] = static_cast<float>(first_position + query);
        if (a.slopes != nullptr) rows.slope[row] = a.slopes[head] * LOG2_E;
        with_element(a.dtype, [&](auto element) {
            const auto* from = static_cast<const decltype(element)*>(a.query) + (token + query) * a.query_token_stride
                               + head * a.query_head_stride;
            float* to = rows.query + row * rows.query_stride;
            each_vector(a.head_size, [&](int64_t i, auto load, auto) { store(to + i, load(from + i) * by); });
            if constexpr (ROTATES_KEYS<Stored>) rotate(to, a.head_size);
        });
        if constexpr (std::is_same_v<Stored, Int8>) {
            Floats x[MOST_FEATURES / LANES];
            const int count = static_cast<int>(rows.query_stride / LANES);
            for (int i = 0; i < count; ++i) {
                const int64_t left = std::min<int64_t>(LANES, a.head_size - i * LANES);
                x[i] = load_first(rows.query + row * rows.query_stride + i * LANES, static_cast<int>(std::max<int64_t>(0, left)));
            }
            rows.integers.round_query(row, x, count);
        }
    }
}

// Divides by the sum of the weights and stores.
template <class Stored>
void store_rows(const Attention& a, const Unit& unit, int32_t kv_head, const Partial& partial) {
    const int64_t group = a.heads / a.kv_heads;
    const float unit_scale = LOADED_UNIT<Stored> * (a.v_scale != nullptr ? *a.v_scale : 1.0f);
    for (int row = 0; row < unit.rows; ++row) {
        const int64_t token = a.query_start_loc[unit.request] + (unit.first_row + row) / group;
        const int64_t head = kv_head * group + (unit.first_row + row) % group;
        float total = reduce_add(load(partial.total + row * LANES)), factor = unit_scale;
        if (a.sinks != nullptr) {
            // One more score, whose value is zero (arXiv:2309.17453).
            const float sink = a.sinks[head] * LOG2_E;
            const float peak = sink > partial.peak[row] ? sink : partial.peak[row];
            const float decay = exp2_scalar(partial.peak[row] - peak);
            total = total * decay + exp2_scalar(sink - peak);
            factor *= decay;
        }
        // A row that sees nothing gives zero.
        const Floats by = broadcast(total == 0.0f ? 0.0f : factor / total);
        with_element(a.dtype, [&](auto element) {
            auto* to = static_cast<decltype(element)*>(a.out) + token * a.out_token_stride + head * a.out_head_stride;
            const float* from = partial.sums + row * partial.sums_stride;
            each_vector(a.value_head_size,
                        [&](int64_t i, auto load, auto store) { store(to + i, load(from + i) * by); });
        });
    }
}

}  // namespace pageport
