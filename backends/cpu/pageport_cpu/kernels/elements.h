// Tensors of float32, bfloat16 or float16, read and written as float32.
#pragma once

#include "kernel.h"
#include "simd.h"

namespace pageport {

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline Floats load(const BFloat16* p) { return load_bfloat16(&p->bits); }
inline Floats load(const Float16* p) { return load_float16(&p->bits); }
inline void store(BFloat16* p, Floats a) { store_bfloat16(&p->bits, a); }
inline void store(Float16* p, Floats a) { store_float16(&p->bits, a); }

template <class Element>
inline Floats load_first(const Element* p, int n) {
    Element values[LANES] = {};
    std::memcpy(static_cast<void*>(values), p, n * sizeof(Element));
    return load(values);
}
template <class Element>
inline void store_first(Element* p, Floats a, int n) {
    Element values[LANES];
    store(values, a);
    std::memcpy(static_cast<void*>(p), values, n * sizeof(Element));
}

// Rounds as storing does.
template <class Element>
inline Floats rounded(Floats x) {
    Element stored[LANES];
    store(stored, x);
    return load(stored);
}

// Calls `function` with a value of the element type that `dtype` names.
template <class Function>
inline void with_element(int64_t dtype, Function function) {
    if (dtype == FLOAT32) function(float{});
    if (dtype == BFLOAT16) function(BFloat16{});
    if (dtype == FLOAT16) function(Float16{});
}

// The same with a second type: that of weights, which are float32 or of the activations' own type.
template <class Function>
inline void with_weighted_element(int64_t dtype, int64_t weight_dtype, Function function) {
    with_element(dtype, [&](auto element) {
        if (weight_dtype == FLOAT32) function(element, float{});
        else function(element, element);
    });
}

// Calls `function(offset, load, store)` for each vector of `n` elements; the last one may be short.
//   each_vector(n, [&](int64_t i, auto load, auto store) { store(out + i, load(x + i) * factor); });
template <class Function>
inline void each_vector(int64_t n, Function function) {
    const auto whole_load = [](const auto* p) { return load(p); };
    const auto whole_store = [](auto* p, Floats a) { store(p, a); };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) function(i, whole_load, whole_store);
    if (i < n) {
        const int rest = static_cast<int>(n - i);
        function(i, [rest](const auto* p) { return load_first(p, rest); },
                 [rest](auto* p, Floats a) { store_first(p, a, rest); });
    }
}

}  // namespace pageport
