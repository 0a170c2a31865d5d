// Exact sums of products of bytes, for 16 outputs at once: `add_products` multiplies unsigned weights by signed inputs.
// For inputs that several quads are multiplied by, `add_quad` does the same and `add_weighted` takes signed values and
// unsigned inputs.
//
// `Quad` holds what is multiplied by 4 consecutive inputs, for each output; `Sums` an int32 for each output.
#pragma once

#include "simd.h"

namespace pageport {

constexpr int OUTPUTS = 16;
// Bytes of a quad, and bytes of activations it is multiplied by.
constexpr int QUAD_BYTES = 4 * OUTPUTS;

// Float32 values of the 16 outputs.
struct Outputs {
    Floats part[OUTPUTS / LANES];
};

template <class Function>
inline Outputs each_part(Function function) {
    Outputs r;
    for (int i = 0; i < OUTPUTS / LANES; ++i) r.part[i] = function(i);
    return r;
}
inline Outputs zero_outputs() {
    return each_part([](int) { return broadcast(0.0f); });
}
inline Outputs load_outputs(const float* p) {
    return each_part([&](int i) { return load(p + i * LANES); });
}
inline Outputs load_outputs_float16(const void* p) {
    return each_part([&](int i) { return load_float16(static_cast<const uint16_t*>(p) + i * LANES); });
}
inline void store_outputs(float* p, const Outputs& a) {
    for (int i = 0; i < OUTPUTS / LANES; ++i) store(p + i * LANES, a.part[i]);
}
inline Outputs operator*(const Outputs& a, const Outputs& b) {
    return each_part([&](int i) { return a.part[i] * b.part[i]; });
}
inline Outputs operator*(const Outputs& a, Floats b) {
    return each_part([&](int i) { return a.part[i] * b; });
}
inline Outputs fma(const Outputs& a, const Outputs& b, const Outputs& c) {
    return each_part([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}
inline Outputs fma(const Outputs& a, Floats b, const Outputs& c) {
    return each_part([&](int i) { return fma(a.part[i], b, c.part[i]); });
}

#if defined(__AVX512F__)

struct Quad {
    __m512i v;
};
struct Sums {
    __m512i v;
};

inline Quad load_quad(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_quad(uint8_t* p, Quad a) { _mm512_storeu_si512(p, a.v); }
inline Quad operator&(Quad a, uint8_t mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(static_cast<char>(mask)))}; }
inline Quad operator|(Quad a, Quad b) { return {_mm512_or_si512(a.v, b.v)}; }
// Shifts move bits between neighbouring bytes: mask afterwards.
template <int BITS>
inline Quad shift_left(Quad a) {
    if constexpr (BITS >= 0) return {_mm512_slli_epi16(a.v, BITS)};
    return {_mm512_srli_epi16(a.v, -BITS)};
}
inline Sums sums_of(int32_t n) { return {_mm512_set1_epi32(n)}; }
// The intrinsic of this conversion brings a warning with GCC 12.
inline Outputs to_outputs(Sums s) { return {{{__builtin_convertvector(reinterpret_cast<__v16si>(s.v), __v16sf)}}}; }
inline Outputs load_outputs_uint8(const uint8_t* p) {
    return to_outputs({_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))});
}
inline Outputs load_outputs_int8(const uint8_t* p) {
    return to_outputs({_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))});
}

// Adds to `sums` of each row the products of QUADS quads of weights below 2^BITS; rows lie `stride` bytes apart.
template <int BITS, int QUADS, int ROWS>
inline void add_products(const Quad* weights, const int8_t* x, int stride, Sums* sums) {
#pragma GCC unroll 8
    for (int quad = 0; quad < QUADS; ++quad) {
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            int32_t four;
            std::memcpy(&four, x + row * stride + quad * 4, 4);
            sums[row].v = _mm512_dpbusd_epi32(sums[row].v, weights[quad].v, _mm512_set1_epi32(four));
        }
    }
}

// Four inputs of each row, in registers.
template <int ROWS>
struct RowInputs {
    __m512i v[ROWS];

    RowInputs(const uint8_t* x, int64_t stride) {
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            int32_t four;
            std::memcpy(&four, x + row * stride, 4);
            v[row] = _mm512_set1_epi32(four);
        }
    }
};

// Adds products of bytes and signed bytes to a sum where it lies: left to itself, the compiler moves and spills sums
// that a loop carries.
inline void add_in_place(Sums& sum, __m512i bytes, __m512i signed_bytes) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(bytes), "v"(signed_bytes));
}

// Adds to `sums` of each row the products of a quad of whole bytes and inputs from -127 to 127.
template <int ROWS>
inline void add_quad(const Quad& weights, const RowInputs<ROWS>& inputs, Sums* sums) {
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) add_in_place(sums[row], weights.v, inputs.v[row]);
}

// Adds to `sums` of each row the products of a quad of values from -127 to 127 and inputs from 0 to 255.
template <int ROWS>
inline void add_weighted(const Quad& values, const RowInputs<ROWS>& inputs, Sums* sums) {
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) add_in_place(sums[row], inputs.v[row], values.v);
}

#elif defined(__AVX2__)

struct Quad {
    __m256i v[2];
};
struct Sums {
    __m256i v[2];
};

inline Quad load_quad(const uint8_t* p) {
    const auto* q = reinterpret_cast<const __m256i*>(p);
    return {{_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)}};
}
inline void store_quad(uint8_t* p, Quad a) {
    auto* q = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(q, a.v[0]);
    _mm256_storeu_si256(q + 1, a.v[1]);
}
inline Quad operator&(Quad a, uint8_t mask) {
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {{_mm256_and_si256(a.v[0], m), _mm256_and_si256(a.v[1], m)}};
}
inline Quad operator|(Quad a, Quad b) { return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}}; }
template <int BITS>
inline Quad shift_left(Quad a) {
    if constexpr (BITS >= 0) return {{_mm256_slli_epi16(a.v[0], BITS), _mm256_slli_epi16(a.v[1], BITS)}};
    return {{_mm256_srli_epi16(a.v[0], -BITS), _mm256_srli_epi16(a.v[1], -BITS)}};
}
inline Sums sums_of(int32_t n) { return {{_mm256_set1_epi32(n), _mm256_set1_epi32(n)}}; }
inline Outputs to_outputs(Sums s) { return {{{_mm256_cvtepi32_ps(s.v[0])}, {_mm256_cvtepi32_ps(s.v[1])}}}; }
inline Outputs load_outputs_uint8(const uint8_t* p) {
    return each_part([&](int i) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i));
        return Floats{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))};
    });
}
inline Outputs load_outputs_int8(const uint8_t* p) {
    return each_part([&](int i) {
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i));
        return Floats{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))};
    });
}

inline __m256i broadcast_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

// Unsigned products of whole bytes would saturate: w - 128 = sign · |w - 128|, and at most 2 · 128 · 127 fits.
template <int QUADS, int ROWS>
inline void add_byte_products(const Quad* weights, const int8_t* x, int stride, Sums* sums) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int quad = 0; quad < QUADS; ++quad) {
        __m256i centred[2], sizes[2];
        for (int half = 0; half < 2; ++half) {
            centred[half] = _mm256_xor_si256(weights[quad].v[half], _mm256_set1_epi8(-128));
            sizes[half] = _mm256_abs_epi8(centred[half]);
        }
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; ++row) {
            const __m256i inputs = broadcast_four(x + row * stride + quad * 4);
            for (int half = 0; half < 2; ++half) {
                const __m256i pairs = _mm256_maddubs_epi16(sizes[half], _mm256_sign_epi8(inputs, centred[half]));
                __m256i& sum = sums[row].v[half];
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                asm("" : "+x"(sum));  // added in this order, as below
            }
        }
    }
}

template <int BITS, int QUADS, int ROWS>
inline void add_narrow_products(const Quad* weights, const int8_t* x, int stride, Sums* sums) {
    // An int16 lane takes two products a quad, each below 2^BITS * 127.
    constexpr int STEP = BITS <= 4 ? QUADS : BITS == 5 ? 4 : 2;
    static_assert(QUADS % STEP == 0);
    // One half of the outputs after the other: the sums of both do not fit in the registers.
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        // Nothing happens here, but the compiler reads the inputs again instead of keeping all, which it has no room for.
        asm("" : "+r"(x));
#pragma GCC unroll 8
        for (int first = 0; first < QUADS; first += STEP) {
            __m256i pairs[ROWS];
#pragma GCC unroll 8
            for (int quad = first; quad < first + STEP; ++quad) {
                const __m256i w = weights[quad].v[half];
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; ++row) {
                    const __m256i products = _mm256_maddubs_epi16(w, broadcast_four(x + row * stride + quad * 4));
                    pairs[row] = quad == first ? products : _mm256_add_epi16(pairs[row], products);
                    asm("" : "+x"(pairs[row]));  // added in this order, not in a tree
                }
            }
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; ++row) {
                const __m256i wide = _mm256_madd_epi16(pairs[row], _mm256_set1_epi16(1));
                sums[row].v[half] = _mm256_add_epi32(sums[row].v[half], wide);
            }
        }
    }
}

template <int BITS, int QUADS, int ROWS>
inline void add_products(const Quad* weights, const int8_t* x, int stride, Sums* sums) {
    if constexpr (BITS == 8) add_byte_products<QUADS, ROWS>(weights, x, stride, sums);
    else add_narrow_products<BITS, QUADS, ROWS>(weights, x, stride, sums);
}

// An int16 lane takes one product of 255 and 127, not two: every other input is multiplied at a time.
// Four inputs of each row, read where they are multiplied: there are no registers for them.
template <int ROWS>
struct RowInputs {
    const uint8_t* x;
    int64_t stride;

    RowInputs(const uint8_t* first, int64_t row_stride) : x(first), stride(row_stride) {}
};

template <int ROWS>
inline void add_quad(const Quad& weights, const RowInputs<ROWS>& inputs, Sums* sums) {
    add_byte_products<1, ROWS>(&weights, reinterpret_cast<const int8_t*>(inputs.x), static_cast<int>(inputs.stride), sums);
}

template <int ROWS>
inline void add_weighted(const Quad& values, const RowInputs<ROWS>& inputs, Sums* sums) {
    const __m256i ones = _mm256_set1_epi16(1), even = _mm256_set1_epi16(255);
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; ++row) {
        const __m256i four = broadcast_four(reinterpret_cast<const int8_t*>(inputs.x + row * inputs.stride));
        for (int half = 0; half < 2; ++half) {
            const __m256i value = values.v[half];
            const __m256i first = _mm256_maddubs_epi16(_mm256_and_si256(four, even), value);
            const __m256i second = _mm256_maddubs_epi16(_mm256_andnot_si256(even, four), value);
            const __m256i products = _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
            sums[row].v[half] = _mm256_add_epi32(sums[row].v[half], products);
        }
    }
}

#else

// Vectors that GCC and Clang split into those of the machine; a quad is kept wider and transposed, [input][output].
typedef int16_t Shorts __attribute__((vector_size(2 * OUTPUTS)));
typedef int32_t Integers __attribute__((vector_size(4 * OUTPUTS)));
typedef float Singles __attribute__((vector_size(4 * OUTPUTS)));
typedef uint8_t Bytes __attribute__((vector_size(OUTPUTS)));
typedef int8_t SignedBytes __attribute__((vector_size(OUTPUTS)));

struct Quad {
    Shorts v[4];
};
struct Sums {
    Integers v;
};

inline Quad load_quad(const uint8_t* p) {
    Integers words;
    std::memcpy(&words, p, sizeof words);
    Quad r;
    for (int i = 0; i < 4; ++i) r.v[i] = __builtin_convertvector(words >> 8 * i & 255, Shorts);
    return r;
}
inline void store_quad(uint8_t* p, const Quad& a) {
    for (int i = 0; i < QUAD_BYTES; ++i) p[i] = static_cast<uint8_t>(a.v[i % 4][i / 4]);
}
template <class Function>
inline Quad each_vector_of(Function function) {
    Quad r;
    for (int i = 0; i < 4; ++i) function(r.v[i], i);
    return r;
}
inline Quad operator&(const Quad& a, uint8_t mask) {
    return each_vector_of([&](Shorts& v, int i) { v = a.v[i] & mask; });
}
inline Quad operator|(const Quad& a, const Quad& b) {
    return each_vector_of([&](Shorts& v, int i) { v = a.v[i] | b.v[i]; });
}
template <int BITS>
inline Quad shift_left(const Quad& a) {
    return each_vector_of([&](Shorts& v, int i) { v = BITS >= 0 ? a.v[i] << (BITS & 7) : a.v[i] >> (-BITS & 7); });
}
inline Sums sums_of(int32_t n) { return {Integers{} + n}; }
template <class Vector>
inline Outputs convert_to_outputs(const Vector& values) {
    const Singles singles = __builtin_convertvector(values, Singles);
    Outputs r;
    std::memcpy(&r, &singles, sizeof r);
    return r;
}
inline Outputs to_outputs(const Sums& s) { return convert_to_outputs(s.v); }
inline Outputs load_outputs_uint8(const uint8_t* p) {
    Bytes values;
    std::memcpy(&values, p, sizeof values);
    return convert_to_outputs(values);
}
inline Outputs load_outputs_int8(const uint8_t* p) {
    SignedBytes values;
    std::memcpy(&values, p, sizeof values);
    return convert_to_outputs(values);
}

template <int BITS, int QUADS, int ROWS>
inline void add_products(const Quad* weights, const int8_t* x, int stride, Sums* sums) {
    for (int row = 0; row < ROWS; ++row) {
#pragma GCC unroll 1
        for (int quad = 0; quad < QUADS; ++quad) {
            for (int i = 0; i < 4; ++i) {
                // At most 255 · 127, which 16 bits hold.
                const Shorts products = weights[quad].v[i] * static_cast<int16_t>(x[row * stride + quad * 4 + i]);
                sums[row].v += __builtin_convertvector(products, Integers);
            }
        }
    }
}

template <int ROWS>
struct RowInputs {
    const uint8_t* x;
    int64_t stride;

    RowInputs(const uint8_t* first, int64_t row_stride) : x(first), stride(row_stride) {}
};

template <int ROWS>
inline void add_quad(const Quad& weights, const RowInputs<ROWS>& inputs, Sums* sums) {
    add_products<8, 1, ROWS>(&weights, reinterpret_cast<const int8_t*>(inputs.x), static_cast<int>(inputs.stride), sums);
}

template <int ROWS>
inline void add_weighted(const Quad& values, const RowInputs<ROWS>& inputs, Sums* sums) {
    for (int row = 0; row < ROWS; ++row) {
        for (int i = 0; i < 4; ++i) {
            const Shorts value = (values.v[i] ^ 128) - 128;
            const Shorts products = value * static_cast<int16_t>(inputs.x[row * inputs.stride + i]);
            sums[row].v += __builtin_convertvector(products, Integers);
        }
    }
}

#endif

// Weights of so many bits have half their range subtracted by `add_products` itself.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int CENTRED_BITS = 8;
#else
constexpr int CENTRED_BITS = 0;
#endif

}  // namespace pageport
