// The two matrix products of attention, over one tile of keys, for a few rows at a time.
//
// Each element is one chain of fused multiply-adds in ascending order of its reduction, however many rows, vectors and
// calls compute it: a row's results do not depend on its neighbours.
#pragma once

#include <type_traits>

#include "attention_ahead.h"
#include "kv_elements.h"

namespace pageport {

// Keys that are scored at a time: they start at multiples of this position. A multiple of the smallest block size,
// and a divisor of the largest one.
constexpr int TILE_KEYS = 64;
constexpr int TILE_VECTORS = TILE_KEYS / LANES;
constexpr int SMALLEST_BLOCK = 16;
// Rows and vectors whose sums fit the registers.
constexpr int MOST_ROWS = 6;
constexpr int MOST_VECTORS = LANES == 16 ? 4 : 2;

// Where one tile's keys and values lie. Vectors and segments that no query sees are left unset.
template <class Stored>
struct Tile {
    const Stored* keys[TILE_VECTORS];  // each vector's first feature
    int64_t key_stride;                // from feature to feature
    const Stored* values[TILE_KEYS / SMALLEST_BLOCK];  // the first value of each `segment` keys
    int64_t value_stride;                              // from key to key
    int segment;
    Ahead* ahead;  // what is fetched while this tile is multiplied
};

// Sums stay in registers only if loops over them are unrolled early.
#define UNROLLED _Pragma("GCC unroll 8")

// Asks for as many lines as VECTORS vectors of step `i` take.
template <class Stored, int VECTORS>
inline void fetch_vectors(Ahead& ahead, int64_t i) {
    constexpr int BYTES = VECTORS * LANES * sizeof(Stored);
    if constexpr (BYTES >= CACHE_LINE) ahead.fetch<BYTES / CACHE_LINE>();
    else if (i % (CACHE_LINE / BYTES) == 0) ahead.fetch<1>();
}

// scores[row, vector] = Σ over features of query[row] * keys[first + vector].
template <class Stored, int ROWS, int VECTORS>
void multiply_keys(const float* query, int64_t query_stride, const Tile<Stored>& tile, int first, int64_t head_size,
                   float* scores) {
    const Stored* keys[VECTORS];
    UNROLLED
    for (int v = 0; v < VECTORS; ++v) keys[v] = tile.keys[first + v];
    Ahead& ahead = *tile.ahead;
    Floats sums[ROWS][VECTORS];
    UNROLLED
    for (auto& row : sums)
        UNROLLED
        for (Floats& sum : row) sum = broadcast(0.0f);
    for (int64_t d = 0; d < head_size; ++d) {
        Floats key[VECTORS];
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) key[v] = load(keys[v] + d * tile.key_stride);
        fetch_vectors<Stored, VECTORS>(ahead, d);
        UNROLLED
        for (int row = 0; row < ROWS; ++row) {
            const Floats feature = broadcast(query[row * query_stride + d]);
            UNROLLED
            for (int v = 0; v < VECTORS; ++v) sums[row][v] = fma(feature, key[v], sums[row][v]);
        }
    }
    UNROLLED
    for (int row = 0; row < ROWS; ++row)
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) store(scores + row * TILE_KEYS + v * LANES, sums[row][v]);
}

// sums[row, vector] += Σ over keys first … last - 1 of weights[row, key] * values[key, column + vector].
template <class Stored, int ROWS, int VECTORS>
void multiply_values(const float* weights, const Tile<Stored>& tile, int first, int last, int64_t column, float* result,
                     int64_t result_stride) {
    Floats sums[ROWS][VECTORS];
    UNROLLED
    for (int row = 0; row < ROWS; ++row)
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) sums[row][v] = load(result + row * result_stride + v * LANES);
    Ahead& ahead = *tile.ahead;
    for (int key = first; key < last;) {
        const int segment = key / tile.segment, start = segment * tile.segment;
        const int end = last < start + tile.segment ? last : start + tile.segment;
        const int64_t offset = (key - start) * tile.value_stride + column;
        const Stored* values = tile.values[segment] + offset;
        for (; key < end; ++key, values += tile.value_stride) {
            Floats value[VECTORS];
            UNROLLED
            for (int v = 0; v < VECTORS; ++v) value[v] = load(values + v * LANES);
            fetch_vectors<Stored, VECTORS>(ahead, key);
            UNROLLED
            for (int row = 0; row < ROWS; ++row) {
                const Floats weight = broadcast(weights[row * TILE_KEYS + key]);
                UNROLLED
                for (int v = 0; v < VECTORS; ++v) sums[row][v] = fma(weight, value[v], sums[row][v]);
            }
        }
    }
    UNROLLED
    for (int row = 0; row < ROWS; ++row)
        UNROLLED
        for (int v = 0; v < VECTORS; ++v) store(result + row * result_stride + v * LANES, sums[row][v]);
}

// Calls function(constant) with the constant `rows`, from 1 to MOST_ROWS.
template <class Function>
inline void with_rows(int rows, Function function) {
    switch (rows) {
        case 1: return function(std::integral_constant<int, 1>{});
        case 2: return function(std::integral_constant<int, 2>{});
        case 3: return function(std::integral_constant<int, 3>{});
        case 4: return function(std::integral_constant<int, 4>{});
        case 5: return function(std::integral_constant<int, 5>{});
        case 6: return function(std::integral_constant<int, 6>{});
    }
}

// Calls function(constant, first) for pieces of `count` vectors of as many as fit the registers, then fewer.
template <int MOST = MOST_VECTORS, class Function>
inline void each_piece(int count, Function function) {
    int first = 0;
    for (; count - first >= MOST; first += MOST) function(std::integral_constant<int, MOST>{}, first);
    if (MOST > 2 && count - first >= 2) {
        function(std::integral_constant<int, 2>{}, first);
        first += 2;
    }
    if (count > first) function(std::integral_constant<int, 1>{}, first);
}

}  // namespace pageport
