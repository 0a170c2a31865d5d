// x + y, x * factor, cap * tanh(x / cap), and rows picked by index.
#include "elements.h"
#include "rows.h"

namespace pageport {

struct RowOp {
    const void* x;
    const void* y;  // null where there is none
    void* out;
    int64_t rows, features;
    int64_t x_stride, y_stride, out_stride;
    int64_t dtype;
    double factor;  // of `scale`; of `softcap`: the cap
};

struct GatherRows {
    const char* x;
    const int64_t* rows;
    char* out;
    int64_t num_rows;
    int64_t row_bytes;
    int64_t x_stride, out_stride;  // in bytes
};

namespace {

template <class Function>
void elementwise(const RowOp& a, Function compute) {
    with_element(a.dtype, [&](auto element) {
        using Element = decltype(element);
        each_row(a.rows, a.features, [&](int64_t row) {
            const Element* x = static_cast<const Element*>(a.x) + row * a.x_stride;
            const Element* y = a.y == nullptr ? x : static_cast<const Element*>(a.y) + row * a.y_stride;
            Element* out = static_cast<Element*>(a.out) + row * a.out_stride;
            each_vector(a.features, [&](int64_t i, auto load, auto store) {
                store(out + i, compute(load(x + i), load(y + i)));
            });
        });
    });
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(add, pageport::RowOp) {
    using namespace pageport;
    elementwise(arguments, [](Floats x, Floats y) { return x + y; });
}

PAGEPORT_KERNEL(scale, pageport::RowOp) {
    using namespace pageport;
    const Floats factor = broadcast(static_cast<float>(arguments.factor));
    elementwise(arguments, [&](Floats x, Floats) { return x * factor; });
}

PAGEPORT_KERNEL(softcap, pageport::RowOp) {
    using namespace pageport;
    const Floats cap = broadcast(static_cast<float>(arguments.factor));
    elementwise(arguments, [&](Floats x, Floats) { return cap * tanh(x / cap); });
}

PAGEPORT_KERNEL(gather_rows, pageport::GatherRows) {
    const pageport::GatherRows& a = arguments;
    pageport::each_row(a.num_rows, a.row_bytes / 4, [&](int64_t row) {
        std::memcpy(a.out + row * a.out_stride, a.x + a.rows[row] * a.x_stride, static_cast<size_t>(a.row_bytes));
    });
}
