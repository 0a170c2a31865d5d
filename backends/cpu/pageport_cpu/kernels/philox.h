// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), many blocks at a time.
#pragma once

#include "simd.h"

namespace pageport {

constexpr int PHILOX_BLOCKS = 16;
constexpr int PHILOX_WORDS = 4 * PHILOX_BLOCKS;
constexpr uint32_t PHILOX_MULTIPLIER_0 = 0xd2511f53u, PHILOX_MULTIPLIER_1 = 0xcd9e8d57u;
constexpr uint32_t PHILOX_KEY_STEP_0 = 0x9e3779b9u, PHILOX_KEY_STEP_1 = 0xbb67ae85u;

// Key and counter of one row; the counter's first word is the number of the block, the last two are 0.
struct PhiloxRow {
    uint32_t key_0, key_1, position;
};

// Words in the lower halves of 64-bit lanes, one lane a block; the upper halves hold anything.
#if defined(__AVX512F__)

struct PhiloxLanes {
    __m512i v;
};
inline PhiloxLanes philox_broadcast(uint32_t word) { return {_mm512_set1_epi64(word)}; }
inline PhiloxLanes philox_count(uint32_t first) {
    return {_mm512_add_epi64(_mm512_set1_epi64(first), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}
inline PhiloxLanes philox_product(PhiloxLanes a, PhiloxLanes b) { return {_mm512_mul_epu32(a.v, b.v)}; }
inline PhiloxLanes philox_mix(PhiloxLanes product, PhiloxLanes word, PhiloxLanes key) {
    return {_mm512_ternarylogic_epi64(_mm512_srli_epi64(product.v, 32), word.v, key.v, 0x96)};  // exclusive or of three
}
inline void philox_store(uint32_t* words, const PhiloxLanes* word) {
    const __m512i low = _mm512_mask_shuffle_epi32(word[0].v, 0xaaaa, word[1].v, _MM_PERM_CCAA);
    const __m512i high = _mm512_mask_shuffle_epi32(word[2].v, 0xaaaa, word[3].v, _MM_PERM_CCAA);
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(low, second, high));
}

#elif defined(__AVX2__)

struct PhiloxLanes {
    __m256i v;
};
inline PhiloxLanes philox_broadcast(uint32_t word) { return {_mm256_set1_epi64x(word)}; }
inline PhiloxLanes philox_count(uint32_t first) {
    return {_mm256_add_epi64(_mm256_set1_epi64x(first), _mm256_setr_epi64x(0, 1, 2, 3))};
}
inline PhiloxLanes philox_product(PhiloxLanes a, PhiloxLanes b) { return {_mm256_mul_epu32(a.v, b.v)}; }
inline PhiloxLanes philox_mix(PhiloxLanes product, PhiloxLanes word, PhiloxLanes key) {
    return {_mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product.v, 32), word.v), key.v)};
}
inline void philox_store(uint32_t* words, const PhiloxLanes* word) {
    const __m256i low = _mm256_blend_epi32(word[0].v, _mm256_slli_epi64(word[1].v, 32), 0xaa);
    const __m256i high = _mm256_blend_epi32(word[2].v, _mm256_slli_epi64(word[3].v, 32), 0xaa);
    const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

#else

struct PhiloxLanes {
    uint64_t v[4];
};
inline PhiloxLanes philox_broadcast(uint32_t word) { return {{word, word, word, word}}; }
inline PhiloxLanes philox_count(uint32_t first) {
    return {{first, uint64_t{first} + 1, uint64_t{first} + 2, uint64_t{first} + 3}};
}
inline PhiloxLanes philox_product(PhiloxLanes a, PhiloxLanes b) {
    PhiloxLanes r;
    for (int i = 0; i < 4; ++i) r.v[i] = (a.v[i] & 0xffffffffu) * (b.v[i] & 0xffffffffu);
    return r;
}
inline PhiloxLanes philox_mix(PhiloxLanes product, PhiloxLanes word, PhiloxLanes key) {
    PhiloxLanes r;
    for (int i = 0; i < 4; ++i) r.v[i] = product.v[i] >> 32 ^ word.v[i] ^ key.v[i];
    return r;
}
inline void philox_store(uint32_t* words, const PhiloxLanes* word) {
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) words[4 * i + j] = static_cast<uint32_t>(word[j].v[i]);
}

#endif

// Writes the words of PHILOX_BLOCKS consecutive blocks, block after block.
inline void philox(PhiloxRow row, uint32_t first_block, uint32_t* words) {
    constexpr int WIDTH = sizeof(PhiloxLanes) / sizeof(uint64_t), PARTS = PHILOX_BLOCKS / WIDTH;
    const PhiloxLanes multiplier_0 = philox_broadcast(PHILOX_MULTIPLIER_0);
    const PhiloxLanes multiplier_1 = philox_broadcast(PHILOX_MULTIPLIER_1);
    PhiloxLanes word[PARTS][4];
    for (int part = 0; part < PARTS; ++part) {
        word[part][0] = philox_count(first_block + static_cast<uint32_t>(part * WIDTH));
        word[part][1] = philox_broadcast(row.position);
        word[part][2] = word[part][3] = philox_broadcast(0);
    }
    for (int round = 0; round < 10; ++round) {
        const PhiloxLanes key_0 = philox_broadcast(row.key_0), key_1 = philox_broadcast(row.key_1);
        for (PhiloxLanes* w : word) {
            const PhiloxLanes product_0 = philox_product(w[0], multiplier_0);
            const PhiloxLanes product_1 = philox_product(w[2], multiplier_1);
            w[0] = philox_mix(product_1, w[1], key_0);
            w[2] = philox_mix(product_0, w[3], key_1);
            w[1] = product_1;
            w[3] = product_0;
        }
        row.key_0 += PHILOX_KEY_STEP_0;
        row.key_1 += PHILOX_KEY_STEP_1;
    }
    for (int part = 0; part < PARTS; ++part) philox_store(words + part * 4 * WIDTH, word[part]);
}

}  // namespace pageport
