// Keys and values as the cache stores them, read as float32.
#pragma once

#include <type_traits>

#include "elements.h"

namespace pageport {

// Features of a token's head, at most.
constexpr int64_t MOST_FEATURES = 1024;

struct Float8E4M3 {
    uint8_t bits;
};
struct Float8E5M2 {
    uint8_t bits;
};
// Of a value the number, of a key the number plus 128.
struct Int8 {
    uint8_t bits;
};

// How many of what a sum runs over lie side by side: features of a key, tokens of a value.
template <class Stored>
inline constexpr int64_t TOGETHER = 1;
template <>
inline constexpr int64_t TOGETHER<Int8> = 4;

// Features that a key of so many takes.
template <class Stored>
constexpr int64_t stored_features(int64_t features) {
    return (features + TOGETHER<Stored> - 1) / TOGETHER<Stored> * TOGETHER<Stored>;
}

// What a load gives is the stored number divided by this power of two, which scales around a product take up.
template <class Stored>
inline constexpr float LOADED_UNIT = 1.0f;
// An E4M3 exponent, whose bias is 7, is read as one of float16, whose bias is 15.
template <>
inline constexpr float LOADED_UNIT<Float8E4M3> = 256.0f;

// Are keys stored as rotation.h rotates them, and queries rotated to match? With two bits of a number rounding takes
// what shows; other formats keep enough.
template <class Stored>
constexpr bool ROTATES_KEYS = std::is_same_v<Stored, Float8E5M2>;

#if defined(__AVX512F__)

inline Floats load(const Float8E5M2* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8))};
}
inline Floats load(const Float8E4M3* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i half = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), wide);
    // All ones are NaN, whatever the sign, which doubling drops.
    const __mmask16 numbers = _mm_cmpneq_epi8_mask(_mm_add_epi8(bytes, bytes), _mm_set1_epi8(-2));
    return {_mm512_mask_cvtph_ps(_mm512_set1_ps(NAN), numbers, half)};
}

#elif defined(__AVX2__)

inline Floats load(const Float8E5M2* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8))};
}
inline Floats load(const Float8E4M3* p) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    const __m128i half = _mm_andnot_si128(_mm_set1_epi16(0x4000), wide);
    const __m128i nan = _mm_cmpeq_epi16(_mm_and_si128(half, _mm_set1_epi16(0x3f80)), _mm_set1_epi16(0x3f80));
    return {_mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))))};
}

#else

inline Floats load(const Float8E5M2* p) {
    return each_lane([&](int i) { return float16_to_float(static_cast<uint16_t>(p[i].bits << 8)); });
}
inline Floats load(const Float8E4M3* p) {
    return each_lane([&](int i) {
        const uint32_t sign = (p[i].bits & 0x80u) << 24, magnitude = p[i].bits & 0x7fu;
        // 2^112 moves the exponent's bias from 15 to 127, subnormals included.
        if (magnitude == 0x7fu) return bits_to_float(sign | 0x7fc00000u);
        return bits_to_float(sign | magnitude << 20) * 0x1p112f;
    });
}

#endif

// Calls `function` with a value of the type that the cache stores.
template <class Function>
inline void with_stored(int64_t dtype, Function function) {
    with_element(dtype, function);
    if (dtype == FP8_E4M3) function(Float8E4M3{});
    if (dtype == FP8_E5M2) function(Float8E5M2{});
    if (dtype == INT8) function(Int8{});
}

}  // namespace pageport
