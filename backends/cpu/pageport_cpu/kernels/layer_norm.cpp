// (x - mean) / sqrt(variance + epsilon) * weight + bias (arXiv:1607.06450).
#include "elements.h"
#include "rows.h"
#include "scratch.h"

namespace pageport {

struct LayerNorm {
    const void* x;
    const void* weight;
    const void* bias;  // null where there is none
    void* out;
    int64_t rows, features;
    int64_t x_stride, out_stride;
    int64_t dtype, weight_dtype;
    double epsilon;
};

namespace {

template <class Element, class Weight>
void norm_row(const Element* x, const Weight* weight, const Weight* bias, Element* out, int64_t features,
              float epsilon) {
    static thread_local Scratch scratch;
    float* centred = scratch.get<float>(static_cast<size_t>(features));
    Floats sums = broadcast(0.0f);
    each_vector(features, [&](int64_t i, auto load, auto) { sums = sums + load(x + i); });
    const Floats mean = broadcast(reduce_add(sums) / static_cast<float>(features));
    Floats squares = broadcast(0.0f);
    each_vector(features, [&](int64_t i, auto load, auto store) {
        store(centred + i, load(x + i) - mean);
        // Read back, so that lanes beyond the row count as 0.
        const Floats value = load(centred + i);
        squares = fma(value, value, squares);
    });
    const float variance = reduce_add(squares) / static_cast<float>(features);
    const Floats scale = broadcast(1.0f / std::sqrt(variance + epsilon));
    each_vector(features, [&](int64_t i, auto load, auto store) {
        const Floats scaled = load(centred + i) * scale * load(weight + i);
        store(out + i, bias == nullptr ? scaled : scaled + load(bias + i));
    });
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(layer_norm, pageport::LayerNorm) {
    using namespace pageport;
    const LayerNorm& a = arguments;
    with_weighted_element(a.dtype, a.weight_dtype, [&](auto element, auto weight) {
        using Element = decltype(element);
        using Weight = decltype(weight);
        each_row(a.rows, a.features, [&](int64_t row) {
            norm_row(static_cast<const Element*>(a.x) + row * a.x_stride, static_cast<const Weight*>(a.weight),
                     static_cast<const Weight*>(a.bias), static_cast<Element*>(a.out) + row * a.out_stride, a.features,
                     static_cast<float>(a.epsilon));
        });
    });
}
