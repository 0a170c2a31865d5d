// Rows of a float matrix, written into its packed form (float_weight.h).
#include <algorithm>
#include <type_traits>

#include "float_weight.h"
#include "thread_pool.h"

namespace pageport {

struct FloatWeightSize {
    int64_t out_features, in_features;
    int64_t* num_values;  // written: values in the packed form
};

struct PackFloat {
    const void* rows;
    void* weight;  // where nothing was packed it holds zeros
    int64_t num_rows, first_row;  // row i of `rows` is output first_row + i
    int64_t in_features, row_stride;
    int64_t rows_dtype, weight_dtype;
};

namespace {

// Inputs of all rows of a panel that are written together: they stay in the nearest cache.
constexpr int64_t INPUTS = 16;

template <class Element, class Weight>
void pack_panel(const Element* rows, Weight* panel, int64_t first_lane, int64_t num_rows, int64_t row_stride,
                int64_t in_features) {
    for (int64_t start = 0; start < in_features; start += INPUTS) {
        const int64_t count = std::min(INPUTS, in_features - start);
        for (int64_t row = 0; row < num_rows; ++row) {
            const Element* from = rows + row * row_stride + start;
            Weight* to = panel + start * PANEL + first_lane + row;
            if constexpr (std::is_same_v<Element, Weight>) {
                for (int64_t k = 0; k < count; ++k) to[k * PANEL] = from[k];
            } else {
                Weight converted[INPUTS];
                each_vector(count, [&](int64_t i, auto load, auto store) { store(converted + i, load(from + i)); });
                for (int64_t k = 0; k < count; ++k) to[k * PANEL] = converted[k];
            }
        }
    }
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(float_weight_size, pageport::FloatWeightSize) {
    using namespace pageport;
    *arguments.num_values = num_panels(arguments.out_features) * arguments.in_features * PANEL;
}

PAGEPORT_KERNEL(pack_float, pageport::PackFloat) {
    using namespace pageport;
    const PackFloat& a = arguments;
    const int64_t first_panel = a.first_row / PANEL, last_panel = num_panels(a.first_row + a.num_rows);
    with_element(a.rows_dtype, [&](auto element) {
        with_element(a.weight_dtype, [&](auto packed) {
            using Element = decltype(element);
            using Weight = decltype(packed);
            const auto pack_panels = [&](int64_t first, int64_t last) {
                for (int64_t panel = first_panel + first; panel < first_panel + last; ++panel) {
                    const int64_t begin = std::max(a.first_row, panel * PANEL);
                    const int64_t end = std::min(a.first_row + a.num_rows, (panel + 1) * PANEL);
                    pack_panel(static_cast<const Element*>(a.rows) + (begin - a.first_row) * a.row_stride,
                               static_cast<Weight*>(a.weight) + panel * a.in_features * PANEL, begin - panel * PANEL,
                               end - begin, a.row_stride, a.in_features);
                }
            };
            parallel_ranges(last_panel - first_panel, 1 + 16384 / (a.in_features * PANEL), pack_panels);
        });
    });
}
