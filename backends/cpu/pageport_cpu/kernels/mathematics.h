// Functions that activations are made of.
#pragma once

#include "simd.h"

namespace pageport {

// 1 / (1 + e^-x), from an exponential that cannot overflow.
inline Floats sigmoid(Floats x) {
    const Floats zero = broadcast(0.0f), one = broadcast(1.0f);
    const Floats decay = exp(zero - abs(x));
    return select(less(x, zero), decay, one) / (one + decay);
}

// The normal distribution function, to a few units in the last place also where it is tiny: at -|x| it is
// e^(-x^2 / 2) t P(t) with t = 1 / (1 + 3/8 |x| / sqrt(2)) and P fitted for the least relative error.
inline Floats normal_distribution(Floats x) {
    const Floats zero = broadcast(0.0f), half = broadcast(0.5f), one = broadcast(1.0f);
    // Beyond 14 it is 0 or 1. The order of the operands lets NaN through.
    const Floats size = min(broadcast(14.0f), abs(x));
    const Floats t = one / fma(broadcast(0.26516504f), size, one);
    Floats p = broadcast(3.08483262e-2f);
    p = fma(p, t, broadcast(-1.44037783e-1f));
    p = fma(p, t, broadcast(2.16947079e-1f));
    p = fma(p, t, broadcast(-1.15538419e-1f));
    p = fma(p, t, broadcast(1.37422204e-1f));
    p = fma(p, t, broadcast(6.05194195e-2f));
    p = fma(p, t, broadcast(1.02715224e-1f));
    p = fma(p, t, broadcast(1.05316751e-1f));
    p = fma(p, t, broadcast(1.05807208e-1f));
    const Floats square = size * size;
    // What rounding took from the square, which the exponential would magnify.
    const Floats lost = fma(size, size, zero - square);
    const Floats tail = exp(zero - half * square) * (one - half * lost) * (p * t);
    return select(less(x, zero), tail, one - tail);
}

inline Floats silu(Floats x) { return x * sigmoid(x); }

// arXiv:1606.08415.
inline Floats gelu_exact(Floats x) { return x * normal_distribution(x); }

// Its approximation x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), with 1 + tanh(u) = 2 sigmoid(2 u).
inline Floats gelu_tanh(Floats x) {
    const Floats cubic = fma(x * x, broadcast(0.044715f), broadcast(1.0f));
    return x * sigmoid(broadcast(1.59576912f) * x * cubic);
}

}  // namespace pageport
