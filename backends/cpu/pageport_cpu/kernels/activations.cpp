// silu(gate) * up and gelu(gate) * up, gate and up being the halves of each row; and gelu alone.
#include "elements.h"
#include "mathematics.h"
#include "rows.h"

namespace pageport {

struct Activation {
    const void* x;
    void* out;
    int64_t rows;
    int64_t features;  // of a row of `out`
    int64_t x_stride, out_stride;
    int64_t dtype;
    int64_t tanh;  // of the gelus: the approximation?
};

namespace {

template <class Function>
void gated(const Activation& a, Function activate) {
    with_element(a.dtype, [&](auto element) {
        using Element = decltype(element);
        each_row(a.rows, a.features, [&](int64_t row) {
            const Element* gate = static_cast<const Element*>(a.x) + row * a.x_stride;
            const Element* up = gate + a.features;
            Element* out = static_cast<Element*>(a.out) + row * a.out_stride;
            each_vector(a.features, [&](int64_t i, auto load, auto store) {
                store(out + i, activate(load(gate + i)) * load(up + i));
            });
        });
    });
}

template <class Function>
void plain(const Activation& a, Function activate) {
    with_element(a.dtype, [&](auto element) {
        using Element = decltype(element);
        each_row(a.rows, a.features, [&](int64_t row) {
            const Element* x = static_cast<const Element*>(a.x) + row * a.x_stride;
            Element* out = static_cast<Element*>(a.out) + row * a.out_stride;
            each_vector(a.features, [&](int64_t i, auto load, auto store) { store(out + i, activate(load(x + i))); });
        });
    });
}

const auto by_exact = [](Floats x) { return gelu_exact(x); };
const auto by_tanh = [](Floats x) { return gelu_tanh(x); };

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(silu_mul, pageport::Activation) {
    pageport::gated(arguments, [](pageport::Floats x) { return pageport::silu(x); });
}

PAGEPORT_KERNEL(gelu_mul, pageport::Activation) {
    using namespace pageport;
    arguments.tanh ? gated(arguments, by_tanh) : gated(arguments, by_exact);
}

PAGEPORT_KERNEL(gelu, pageport::Activation) {
    using namespace pageport;
    arguments.tanh ? plain(arguments, by_tanh) : plain(arguments, by_exact);
}
