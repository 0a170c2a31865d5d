// Rounding of float32 numbers to 8-bit integers.
#pragma once

#include "simd.h"

namespace pageport {

// Rounds to whole numbers, ties to even; NaN becomes any.
inline void store_int8(int8_t* p, Floats a) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
#elif defined(__AVX2__)
    const __m256i n = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
#else
    for (int i = 0; i < LANES; ++i) p[i] = a.v[i] == a.v[i] ? static_cast<int8_t>(std::nearbyint(a.v[i])) : 0;
#endif
}

// The same of numbers from 0 to 255.
inline void store_uint8(uint8_t* p, Floats a) {
#if defined(__AVX512F__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(a.v)));
#elif defined(__AVX2__)
    const __m256i n = _mm256_cvtps_epi32(a.v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#else
    for (int i = 0; i < LANES; ++i) p[i] = a.v[i] == a.v[i] ? static_cast<uint8_t>(std::nearbyint(a.v[i])) : 0;
#endif
}

// The largest |x|, which is NaN or not where an x is NaN.
inline float largest_number(const Floats* x, int count) {
    Floats most = abs(x[0]);
    for (int i = 1; i < count; ++i) most = max(most, abs(x[i]));
    return reduce_max(most);
}

// 0; NaN in lanes where any x is NaN or infinite.
inline Floats poisons(const Floats* x, int count) {
    Floats sum = broadcast(0.0f);
    for (int i = 0; i < count; ++i) sum = fma(x[i], broadcast(0.0f), sum);
    return sum;
}
inline float poison(const Floats* x, int count) { return reduce_add(poisons(x, count)); }

// The largest |x|; NaN if any is NaN or infinite.
inline float largest(const Floats* x, int count) { return largest_number(x, count) + poison(x, count); }

}  // namespace pageport
