// Stores a step's keys and values in the blocks of the cache, rounded to what it stores.
#include <algorithm>

#include "kv_elements.h"
#include "rotation.h"
#include "rounding.h"
#include "thread_pool.h"

namespace pageport {

struct WriteKV {
    const void* key;    // [tokens, kv_heads, head_size]
    const void* value;  // [tokens, kv_heads, value_head_size]
    void* keys;         // one layer of a block: [kv_heads, head_size, block_size]; integers as
    void* values;       // [kv_heads, block_size, value_head_size]               attention_integers.h says
    float* key_scales;  // [kv_heads, block_size], as are those of values; null unless int8 is stored
    float* value_scales;
    const int64_t* slots;  // [tokens]; -1 is padding
    const float* k_scale;  // null, or what keys stored as 8-bit floats are to be multiplied by
    const float* v_scale;
    int64_t tokens, kv_heads, head_size, value_head_size, block_size;
    int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
    int64_t block_stride, scale_block_stride;
    int64_t dtype, stored_dtype;
};

namespace {

uint32_t bits_of(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    return bits;
}

// Rounds to the nearest, ties to even, what is too large to the largest; NaN stays NaN. Free of branches and of narrow
// types, so that compilers vectorise loops of it.
template <int MANTISSA_BITS, int BIAS>
uint32_t to_float8(float f, float largest) {
    constexpr int shift = 23 - MANTISSA_BITS;
    const uint32_t bits = bits_of(f), magnitude = bits & 0x7fffffffu;
    const uint32_t limited = std::min(magnitude, bits_of(largest));
    const uint32_t rounding = (1u << (shift - 1)) - 1 + (limited >> shift & 1u);
    const uint32_t normal = ((limited + rounding) >> shift) - ((127u - BIAS) << MANTISSA_BITS);
    // Adding a number whose last place is that of subnormals rounds there.
    constexpr float magic = static_cast<float>(1 << (23 - MANTISSA_BITS + 1 - BIAS));
    const uint32_t subnormal = bits_of(std::min(std::fabs(f), 1.0f) + magic) - bits_of(magic);
    constexpr uint32_t smallest_normal = (128u - BIAS) << 23;
    const uint32_t finite = limited < smallest_normal ? subnormal : normal;
    return (magnitude > 0x7f800000u ? 0x7fu : finite) | (bits >> 24 & 0x80u);
}

// Each stores numbers over `scale`, and returns what int8 is to be multiplied by.
template <class Stored>
float encode(const float* from, Stored* to, int64_t n, float) {
    each_vector(n, [&](int64_t i, auto load, auto store) { store(to + i, load(from + i)); });
    return 1.0f;
}

template <int MANTISSA_BITS, int BIAS>
float encode_float8(const float* from, void* to, int64_t n, float scale, float largest) {
    uint32_t wide[MOST_FEATURES];
    for (int64_t i = 0; i < n; ++i) wide[i] = to_float8<MANTISSA_BITS, BIAS>(from[i] / scale, largest);
    for (int64_t i = 0; i < n; ++i) static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(wide[i]);
    return 1.0f;
}
float encode(const float* from, Float8E4M3* to, int64_t n, float scale) {
    return encode_float8<3, 7>(from, to, n, scale, 448.0f);
}
constexpr float LARGEST_E5M2 = 57344.0f;
float encode(const float* from, Float8E5M2* to, int64_t n, float scale) {
    return encode_float8<2, 15>(from, to, n, scale, LARGEST_E5M2);
}

// The largest number becomes 127. A token that is not finite becomes NaN through its scale.
float encode(const float* from, Int8* to, int64_t n, float) {
    Floats most = broadcast(0.0f), zeros = broadcast(0.0f);
    each_vector(n, [&](int64_t i, auto load, auto) {
        const Floats x = load(from + i);
        most = max(most, abs(x));
        zeros = fma(x, broadcast(0.0f), zeros);
    });
    if (reduce_add(zeros) != 0.0f) {
        std::memset(to, 0, n);
        return std::numeric_limits<float>::quiet_NaN();
    }
    const float scale = reduce_max(most) / 127.0f;
    const Floats divisor = broadcast(scale == 0.0f ? 1.0f : scale);
    const Floats highest = broadcast(127.0f), lowest = broadcast(-127.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        int8_t rounded[LANES];
        const int count = static_cast<int>(std::min<int64_t>(LANES, n - i));
        store_int8(rounded, max(lowest, min(highest, load_first(from + i, count) / divisor)));
        for (int lane = 0; lane < count; ++lane) to[i + lane].bits = static_cast<uint8_t>(rounded[lane]);
    }
    return scale;
}

template <class Element>
void widen(const Element* from, float* to, int64_t n) {
    each_vector(n, [&](int64_t i, auto load, auto) {
        store_first(to + i, load(from + i), static_cast<int>(std::min<int64_t>(LANES, n - i)));
    });
}

// Rotates a key that will be stored over `scale`, and divides it by the number of features that are rotated together:
// queries are not. Numbers are limited first, so that an infinite one is as large as any and does not become NaN where
// it meets another; their means are within the limit then. NaN reaches all features it is rotated with.
void rotate_key(float* key, int64_t n, float scale) {
    const Floats highest = broadcast(LARGEST_E5M2 * scale), lowest = broadcast(-LARGEST_E5M2 * scale);
    // A power of two, by which nothing is rounded.
    const Floats share = broadcast(1.0f / static_cast<float>(rotated_features(n)));
    each_vector(n, [&](int64_t i, auto load, auto store) {
        // The order of the operands lets NaN through.
        store(key + i, max(lowest, min(highest, load(key + i))) * share);
    });
    rotate(key, n);
}

// Stores a key of `n` features among those of `block_size` tokens; returns its scale.
template <class Element, class Stored>
float store_key(const Element* from, Stored* to, int64_t n, int64_t block_size, float scale) {
    float wide[MOST_FEATURES];
    Stored stored[MOST_FEATURES];
    widen(from, wide, n);
    if constexpr (ROTATES_KEYS<Stored>) rotate_key(wide, n, scale);
    const float result = encode(wide, stored, n, scale);
    constexpr int64_t together = TOGETHER<Stored>;
    if constexpr (std::is_same_v<Stored, Int8>) {
        for (int64_t i = 0; i < n; ++i) stored[i].bits ^= 128;
    }
    std::memset(stored + n, 0, (stored_features<Stored>(n) - n) * sizeof(Stored));
    for (int64_t i = 0; i < n; i += together) std::memcpy(to + i * block_size, stored + i, together * sizeof(Stored));
    return result;
}

// Stores a value of `n` features; returns its scale.
template <class Element, class Stored>
float store_value(const Element* from, Stored* to, int64_t n, float scale) {
    float wide[MOST_FEATURES];
    widen(from, wide, n);
    if constexpr (TOGETHER<Stored> == 1) return encode(wide, to, n, scale);
    Stored stored[MOST_FEATURES];
    const float result = encode(wide, stored, n, scale);
    for (int64_t i = 0; i < n; ++i) to[i * TOGETHER<Stored>] = stored[i];
    return result;
}

// Asks for the cache lines of `n` pieces, `stride` bytes apart: one after the other, waiting for each, takes longer than
// everything else.
inline void prefetch_pieces(const void* to, int64_t n, int64_t stride) {
    const int64_t step = stride < 64 ? 64 / stride : 1;
    for (int64_t i = 0; i < n; i += step) __builtin_prefetch(static_cast<const char*>(to) + i * stride, 1, 2);
}

// Where one head of a token lies.
template <class Stored>
struct Place {
    Stored *key, *value;
    int64_t scale;

    Place(const WriteKV& a, int64_t slot, int64_t head) {
        const int64_t block = slot / a.block_size, offset = slot % a.block_size, start = block * a.block_stride;
        constexpr int64_t together = TOGETHER<Stored>;
        key = static_cast<Stored*>(a.keys) + start + head * stored_features<Stored>(a.head_size) * a.block_size
              + offset * together;
        value = static_cast<Stored*>(a.values) + start
                + (head * a.block_size + offset / together * together) * a.value_head_size + offset % together;
        scale = block * a.scale_block_stride + head * a.block_size + offset;
    }
};

// Heads ahead of the one that is being stored.
constexpr int64_t PREFETCH_HEADS = 2;
// Elements that are worth a second thread.
constexpr int64_t ELEMENTS_PER_PIECE = 8192;

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(write_kv, pageport::WriteKV) {
    using namespace pageport;
    const WriteKV& a = arguments;
    const float k_scale = a.k_scale != nullptr ? *a.k_scale : 1.0f, v_scale = a.v_scale != nullptr ? *a.v_scale : 1.0f;
    const auto write_head = [&](int64_t index, auto element, auto stored) {
        using Element = decltype(element);
        using Stored = decltype(stored);
        const int64_t token = index / a.kv_heads, head = index % a.kv_heads, slot = a.slots[token];
        if (slot < 0) return;
        const Place<Stored> place(a, slot, head);
        const float key_scale = store_key(
            static_cast<const Element*>(a.key) + token * a.key_token_stride + head * a.key_head_stride, place.key,
            a.head_size, a.block_size, k_scale);
        const float value_scale = store_value(
            static_cast<const Element*>(a.value) + token * a.value_token_stride + head * a.value_head_stride,
            place.value, a.value_head_size, v_scale);
        if (a.key_scales == nullptr) return;
        a.key_scales[place.scale] = key_scale;
        a.value_scales[place.scale] = value_scale;
    };
    const auto prefetch_head = [&](int64_t index, auto stored) {
        using Stored = decltype(stored);
        const int64_t token = index / a.kv_heads, head = index % a.kv_heads, slot = a.slots[token];
        // The lines of a token's predecessor in its block are its own too.
        if (slot < 0 || (token > 0 && slot == a.slots[token - 1] + 1 && slot % a.block_size != 0)) return;
        const Place<Stored> place(a, slot, head);
        constexpr int64_t piece = TOGETHER<Stored> * sizeof(Stored);
        prefetch_pieces(place.key, stored_features<Stored>(a.head_size) / TOGETHER<Stored>, a.block_size * piece);
        prefetch_pieces(place.value, a.value_head_size, piece);
    };
    with_element(a.dtype, [&](auto element) {
        with_stored(a.stored_dtype, [&](auto stored) {
            const int64_t elements = a.kv_heads * (a.head_size + a.value_head_size);
            parallel_ranges(a.tokens, 1 + ELEMENTS_PER_PIECE / elements, [&](int64_t first, int64_t last) {
                const int64_t begin = first * a.kv_heads, end = last * a.kv_heads;
                for (int64_t i = begin; i < begin + PREFETCH_HEADS && i < end; ++i) prefetch_head(i, stored);
                for (int64_t i = begin; i < end; ++i) {
                    if (i + PREFETCH_HEADS < end) prefetch_head(i + PREFETCH_HEADS, stored);
                    write_head(i, element, stored);
                }
            });
        });
    });
}
