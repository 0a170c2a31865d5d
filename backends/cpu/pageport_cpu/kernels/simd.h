// `Floats`: a vector of LANES float32 values, the same operations on every instruction set.
//
// Results depend on the instruction set only, never on how many values are processed together: lanes are independent,
// `fma` rounds once wherever the hardware has it, and reductions add in one fixed order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace pageport {

#if defined(__AVX512F__)

constexpr int LANES = 16;

struct Floats {
    __m512 v;
};

inline Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// Lanes from n on read as 0 and are not written; their memory is not touched.
inline Floats load_first(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
inline void store_first(float* p, Floats a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats round_even(Floats a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Floats floor(Floats a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
// Lanes 1, 0, 3, 2, ...
inline Floats swap_pairs(Floats a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
inline float reduce_add(Floats a) { return _mm512_reduce_add_ps(a.v); }
inline float reduce_max(Floats a) { return _mm512_reduce_max_ps(a.v); }
// a where mask bit is set, else b; comparisons with NaN are false.
using Mask = __mmask16;
inline Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Floats select(Mask m, Floats a, Floats b) { return {_mm512_mask_blend_ps(m, b.v, a.v)}; }
inline bool has_nan(Floats a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q) != 0; }
// 2^n for whole n in [-126, 127].
inline Floats power_of_two(Floats n) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}

inline Floats load_bfloat16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Floats load_float16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_float16(uint16_t* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__)

constexpr int LANES = 8;

struct Floats {
    __m256 v;
};

inline Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline Floats broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_first(const float* p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
inline void store_first(float* p, Floats a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Floats abs(Floats a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline Floats round_even(Floats a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Floats floor(Floats a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
inline Floats swap_pairs(Floats a) { return {_mm256_permute_ps(a.v, 0xb1)}; }
inline float reduce_add(Floats a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float reduce_max(Floats a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
using Mask = __m256;
inline Mask less(Floats a, Floats b) { return _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ); }
inline Floats select(Mask m, Floats a, Floats b) { return {_mm256_blendv_ps(b.v, a.v, m)}; }
inline bool has_nan(Floats a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)) != 0; }
inline Floats power_of_two(Floats n) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}

inline Floats load_bfloat16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline Floats load_float16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_float16(uint16_t* p, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

// Plain C++, four lanes; NEON machines vectorise the loops.
constexpr int LANES = 4;

struct Floats {
    float v[LANES];
};

template <class Function>
inline Floats each_lane(Function f) {
    Floats r;
    for (int i = 0; i < LANES; ++i) r.v[i] = f(i);
    return r;
}
inline Floats load(const float* p) { return each_lane([&](int i) { return p[i]; }); }
inline void store(float* p, Floats a) { std::memcpy(p, a.v, sizeof a.v); }
inline Floats broadcast(float x) { return each_lane([&](int) { return x; }); }
inline Floats load_first(const float* p, int n) { return each_lane([&](int i) { return i < n ? p[i] : 0.0f; }); }
inline void store_first(float* p, Floats a, int n) {
    for (int i = 0; i < n && i < LANES; ++i) p[i] = a.v[i];
}
inline Floats operator+(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] + b.v[i]; }); }
inline Floats operator-(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] - b.v[i]; }); }
inline Floats operator*(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] * b.v[i]; }); }
inline Floats operator/(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] / b.v[i]; }); }
#if defined(__ARM_NEON) || defined(__FMA__)
inline Floats fma(Floats a, Floats b, Floats c) { return each_lane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); }); }
#else
// Without the instruction a correctly rounded fma is a slow library call.
inline Floats fma(Floats a, Floats b, Floats c) { return a * b + c; }
#endif
inline Floats max(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Floats min(Floats a, Floats b) { return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline Floats abs(Floats a) { return each_lane([&](int i) { return std::fabs(a.v[i]); }); }
inline Floats round_even(Floats a) { return each_lane([&](int i) { return std::nearbyint(a.v[i]); }); }
inline Floats floor(Floats a) { return each_lane([&](int i) { return std::floor(a.v[i]); }); }
inline Floats swap_pairs(Floats a) { return each_lane([&](int i) { return a.v[i ^ 1]; }); }
inline float reduce_add(Floats a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
inline float reduce_max(Floats a) {
    const float low = a.v[0] > a.v[2] ? a.v[0] : a.v[2], high = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
    return low > high ? low : high;
}
struct Mask {
    bool v[LANES];
};
inline Mask less(Floats a, Floats b) {
    Mask m;
    for (int i = 0; i < LANES; ++i) m.v[i] = a.v[i] < b.v[i];
    return m;
}
inline Floats select(Mask m, Floats a, Floats b) { return each_lane([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; }); }
inline bool has_nan(Floats a) {
    bool found = false;
    for (int i = 0; i < LANES; ++i) found |= a.v[i] != a.v[i];
    return found;
}
inline Floats power_of_two(Floats n) { return each_lane([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); }); }

inline float bits_to_float(uint32_t bits) {
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline float float16_to_float(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    // A product by 2^112 moves the exponent's bias from 15 to 127, subnormals included.
    return bits_to_float(sign | magnitude << 13) * 0x1p112f;
}
inline uint16_t float_to_float16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds beyond 65504
    if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded bits at the bottom of the sum
        uint32_t sum;
        const float shifted = std::fabs(f) + 0.5f;
        std::memcpy(&sum, &shifted, sizeof sum);
        return static_cast<uint16_t>(sign | (sum - 0x3f000000u));
    }
    return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}
inline Floats load_bfloat16(const uint16_t* p) {
    return each_lane([&](int i) { return bits_to_float(static_cast<uint32_t>(p[i]) << 16); });
}
inline Floats load_float16(const uint16_t* p) { return each_lane([&](int i) { return float16_to_float(p[i]); }); }
inline void store_float16(uint16_t* p, Floats a) {
    for (int i = 0; i < LANES; ++i) p[i] = float_to_float16(a.v[i]);
}

#endif

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#if defined(__AVX512F__)
inline void store_bfloat16(uint16_t* p, Floats a) {
    const __m512i bits = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}
#elif defined(__AVX2__)
inline void store_bfloat16(uint16_t* p, Floats a) {
    const __m256i bits = _mm256_castps_si256(a.v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), is_nan);
    const __m256i high = _mm256_srli_epi32(result, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
#else
inline void store_bfloat16(uint16_t* p, Floats a) {
    float values[LANES];
    store(values, a);
    for (int i = 0; i < LANES; ++i) p[i] = to_bfloat16(values[i]);
}
#endif

// e^x within 2 units in the last place for x <= 88; below -87.3 it is 0, above 88 about 1.65e38; NaN stays NaN.
// Cody and Waite, Software Manual for the Elementary Functions (1980): x = n ln 2 + r, and a polynomial in r.
inline Floats exp(Floats x) {
    const Floats lowest = broadcast(-87.33654f), highest = broadcast(88.0f);
    // The order of the operands lets NaN through: `max` and `min` return the second one then.
    const Floats clamped = max(lowest, min(highest, x));
    const Floats n = round_even(clamped * broadcast(1.44269504f));
    Floats r = fma(n, broadcast(-0.693359375f), clamped);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r) + broadcast(1.0f);
    return select(less(x, lowest), broadcast(0.0f), p * power_of_two(n));
}

// tanh within 2 units in the last place; ±1 far out, NaN stays NaN. Near 0, where a difference of exponentials would
// cancel, x + x^3 P(x^2) with P fitted for the least relative error.
inline Floats tanh(Floats x) {
    const Floats size = abs(x), one = broadcast(1.0f), two = broadcast(2.0f);
    const Floats far = one - two / (exp(size * two) + one);
    const Floats square = x * x;
    Floats p = broadcast(-5.71703698e-3f);
    p = fma(p, square, broadcast(2.06505787e-2f));
    p = fma(p, square, broadcast(-5.37434965e-2f));
    p = fma(p, square, broadcast(1.33314908e-1f));
    p = fma(p, square, broadcast(-3.33332837e-1f));
    const Floats near = fma(p * square, x, x);
    return select(less(size, broadcast(0.625f)), near, select(less(x, broadcast(0.0f)), broadcast(0.0f) - far, far));
}

}  // namespace pageport
