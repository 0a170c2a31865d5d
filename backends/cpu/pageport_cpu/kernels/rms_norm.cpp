// x / sqrt(mean(x²) + epsilon) * weight (arXiv:1910.07467), and the same of a sum that replaces the residual.
#include "elements.h"
#include "rows.h"

namespace pageport {

struct RmsNorm {
    const void* x;
    void* residual;  // null, or what x is added to, in place
    const void* weight;
    void* out;
    // Rows are [outer, inner], so that the heads of a view can be normed.
    int64_t outer, inner;
    int64_t x_outer_stride, x_inner_stride;
    int64_t residual_outer_stride, residual_inner_stride;
    int64_t out_outer_stride, out_inner_stride;
    int64_t features;
    int64_t dtype, weight_dtype;
    double epsilon;
};

namespace {

template <class Element, class Weight>
void norm_row(const Element* x, Element* residual, const Weight* weight, Element* out, int64_t features,
              float epsilon) {
    Floats squares = broadcast(0.0f);
    if (residual != nullptr) {
        each_vector(features, [&](int64_t i, auto load, auto store) {
            store(residual + i, load(x + i) + load(residual + i));
            // Read back as it was rounded, which is what the next layer sees.
            const Floats sum = load(residual + i);
            squares = fma(sum, sum, squares);
        });
        x = residual;
    } else {
        each_vector(features, [&](int64_t i, auto load, auto) {
            const Floats value = load(x + i);
            squares = fma(value, value, squares);
        });
    }
    const float mean = reduce_add(squares) / static_cast<float>(features);
    const Floats scale = broadcast(1.0f / std::sqrt(mean + epsilon));
    each_vector(features, [&](int64_t i, auto load, auto store) { store(out + i, load(x + i) * scale * load(weight + i)); });
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(rms_norm, pageport::RmsNorm) {
    using namespace pageport;
    const RmsNorm& a = arguments;
    with_weighted_element(a.dtype, a.weight_dtype, [&](auto element, auto weight) {
        using Element = decltype(element);
        using Weight = decltype(weight);
        each_row(a.outer * a.inner, a.features, [&](int64_t row) {
            const int64_t outer = row / a.inner, inner = row % a.inner;
            auto* residual = static_cast<Element*>(a.residual);
            if (residual != nullptr) residual += outer * a.residual_outer_stride + inner * a.residual_inner_stride;
            norm_row(static_cast<const Element*>(a.x) + outer * a.x_outer_stride + inner * a.x_inner_stride, residual,
                     static_cast<const Weight*>(a.weight),
                     static_cast<Element*>(a.out) + outer * a.out_outer_stride + inner * a.out_inner_stride, a.features,
                     static_cast<float>(a.epsilon));
        });
    });
}
