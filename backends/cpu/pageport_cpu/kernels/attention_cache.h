// The blocks that one request's keys and values lie in.
#pragma once

#include "attention_rows.h"

namespace pageport {

// Scales of a tile's tokens, by vector; null pointers where the cache has none.
struct TileScales {
    const float* keys[TILE_VECTORS];
    const float* values[TILE_VECTORS];
};

// One KV head of a request's blocks, and which of its keys are read.
template <class Stored>
struct Cache {
    const Attention& a;
    const int32_t* blocks;
    int64_t kv_head;
    KeyRange read;

    const Stored* key(int64_t position) const {
        return static_cast<const Stored*>(a.keys) + block(position) * a.block_stride
               + kv_head * stored_features<Stored>(a.head_size) * a.block_size
               + position % a.block_size * TOGETHER<Stored>;
    }
    const Stored* value(int64_t position) const {
        return static_cast<const Stored*>(a.values) + block(position) * a.block_stride
               + (kv_head * a.block_size + position % a.block_size) * a.value_head_size;
    }
    const float* scale(const float* scales, int64_t position) const {
        return scales + block(position) * a.scale_block_stride + kv_head * a.block_size + position % a.block_size;
    }

private:
    int64_t block(int64_t position) const { return blocks[position / a.block_size]; }
};

template <class Stored>
void locate_tile(const Cache<Stored>& cache, int64_t tile_start, TileRange seen, Tile<Stored>& tile,
                 TileScales& scales) {
    const Attention& a = cache.a;
    tile.key_stride = a.block_size * TOGETHER<Stored>;
    tile.value_stride = a.value_head_size;
    tile.segment = static_cast<int>(std::min<int64_t>(a.block_size, TILE_KEYS));
    // All vectors of a group of integers.
    for (int v = seen.first / SMALLEST_BLOCK * SMALLEST_BLOCK / LANES; v < seen.last_vector(); ++v) {
        const int64_t position = tile_start + v * LANES;
        tile.keys[v] = cache.key(position);
        if (a.key_scales == nullptr) continue;
        scales.keys[v] = cache.scale(a.key_scales, position);
        scales.values[v] = cache.scale(a.value_scales, position);
    }
    for (int segment = seen.first / tile.segment; segment * tile.segment < seen.last; ++segment) {
        tile.values[segment] = cache.value(tile_start + segment * tile.segment);
    }
}

// Lets `ahead` fetch what will be read from `tile_start` on of this KV head and the following `heads` - 1. Blocks larger
// than tiles are fetched with the tile that their first key is in.
template <class Stored>
void plan_fetches(const Cache<Stored>& cache, int64_t heads, int64_t tile_start, Ahead& ahead) {
    const Attention& a = cache.a;
    const int64_t tokens = heads * a.block_size, end = std::min(tile_start + TILE_KEYS, cache.read.last);
    for (int64_t key = (tile_start + a.block_size - 1) / a.block_size * a.block_size; key < end; key += a.block_size) {
        ahead.add(cache.key(key), tokens * stored_features<Stored>(a.head_size) * int64_t{sizeof(Stored)});
        ahead.add(cache.value(key), tokens * a.value_head_size * int64_t{sizeof(Stored)});
        if (a.key_scales == nullptr) continue;
        ahead.add(cache.scale(a.key_scales, key), tokens * int64_t{sizeof(float)});
        ahead.add(cache.scale(a.value_scales, key), tokens * int64_t{sizeof(float)});
    }
}

// Reads a tile once into float32, for many rows.
template <class Stored>
Tile<float> convert(const Attention& a, const Tile<Stored>& tile, TileRange seen, float* memory) {
    Tile<float> result;
    result.key_stride = TILE_KEYS;
    result.ahead = tile.ahead;
    for (int v = seen.first_vector(); v < seen.last_vector(); ++v) {
        result.keys[v] = memory + v * LANES;
        for (int64_t d = 0; d < a.head_size; ++d) {
            store(memory + d * TILE_KEYS + v * LANES, load(tile.keys[v] + d * tile.key_stride));
        }
    }
    memory += a.head_size * TILE_KEYS;
    result.value_stride = padded(a.value_head_size);
    result.segment = TILE_KEYS;
    result.values[0] = memory;
    for (int key = seen.first; key < seen.last; ++key) {
        const Stored* from = tile.values[key / tile.segment] + key % tile.segment * tile.value_stride;
        float* to = memory + key * result.value_stride;
        for (int64_t i = 0; i < result.value_stride; i += LANES) store(to + i, load(from + i));
    }
    return result;
}

}  // namespace pageport
