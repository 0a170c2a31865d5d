// Rotates the first features of query and key heads in place (arXiv:2104.09864).
#include "elements.h"
#include "rows.h"
#include "scratch.h"

namespace pageport {

struct Rope {
    void* query;
    void* key;
    const int64_t* positions;
    const float* cos_sin;  // by position: cosines, then sines
    int64_t tokens;
    int64_t query_heads, key_heads;
    int64_t query_token_stride, query_head_stride;
    int64_t key_token_stride, key_head_stride;
    int64_t cos_sin_stride;
    int64_t rotary_size;
    int64_t interleaved;  // pairs are (2i, 2i + 1), not (i, i + rotary_size / 2)
    int64_t dtype;
};

namespace {

template <class Element>
void rotate_halves(Element* head, const float* cosines, const float* sines, int64_t half) {
    Element* other = head + half;
    each_vector(half, [&](int64_t i, auto load, auto store) {
        const Floats cosine = load(cosines + i), sine = load(sines + i);
        const Floats a = load(head + i), b = load(other + i);
        store(head + i, fma(a, cosine, broadcast(0.0f) - b * sine));
        store(other + i, fma(b, cosine, a * sine));
    });
}

// `cosines` and `sines` hold one value a feature, of sines the first of a pair negated.
template <class Element>
void rotate_pairs(Element* head, const float* cosines, const float* sines, int64_t rotary_size) {
    each_vector(rotary_size, [&](int64_t i, auto load, auto store) {
        const Floats x = load(head + i);
        store(head + i, fma(x, load(cosines + i), swap_pairs(x) * load(sines + i)));
    });
}

template <class Element>
void rotate_token(const Rope& a, int64_t token) {
    const int64_t half = a.rotary_size / 2;
    const float* cosines = a.cos_sin + a.positions[token] * a.cos_sin_stride;
    const float* sines = cosines + half;
    if (a.interleaved) {
        static thread_local Scratch scratch;
        float* spread = scratch.get<float>(static_cast<size_t>(4 * half));
        for (int64_t i = 0; i < half; ++i) {
            spread[2 * i] = spread[2 * i + 1] = cosines[i];
            spread[2 * half + 2 * i] = -sines[i];
            spread[2 * half + 2 * i + 1] = sines[i];
        }
        cosines = spread;
        sines = spread + 2 * half;
    }
    const auto rotate = [&](void* heads, int64_t count, int64_t token_stride, int64_t head_stride) {
        for (int64_t head = 0; head < count; ++head) {
            Element* x = static_cast<Element*>(heads) + token * token_stride + head * head_stride;
            if (a.interleaved) rotate_pairs(x, cosines, sines, a.rotary_size);
            else rotate_halves(x, cosines, sines, half);
        }
    };
    rotate(a.query, a.query_heads, a.query_token_stride, a.query_head_stride);
    rotate(a.key, a.key_heads, a.key_token_stride, a.key_head_stride);
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(rope, pageport::Rope) {
    using namespace pageport;
    const Rope& a = arguments;
    with_element(a.dtype, [&](auto element) {
        using Element = decltype(element);
        const int64_t features = (a.query_heads + a.key_heads) * a.rotary_size;
        each_row(a.tokens, features, [&](int64_t token) { rotate_token<Element>(a, token); });
    });
}
