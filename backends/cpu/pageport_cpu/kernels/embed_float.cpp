// Rows of a packed float matrix, by token id.
#include <algorithm>

#include "float_weight.h"
#include "thread_pool.h"

namespace pageport {

struct EmbedFloat {
    const void* weight;
    const int64_t* token_ids;
    void* out;
    int64_t num_tokens, in_features, out_stride;
    int64_t weight_dtype, out_dtype;
};

namespace {

// Inputs that are gathered before they are converted.
constexpr int64_t INPUTS = 64;

template <class Weight, class Element>
void copy_row(const Weight* weight, Element* out, int64_t in_features) {
    for (int64_t start = 0; start < in_features; start += INPUTS) {
        const int64_t count = std::min(INPUTS, in_features - start);
        Weight gathered[INPUTS];
        for (int64_t k = 0; k < count; ++k) gathered[k] = weight[(start + k) * PANEL];
        each_vector(count, [&](int64_t i, auto load, auto store) { store(out + start + i, load(gathered + i)); });
    }
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(embed_float, pageport::EmbedFloat) {
    using namespace pageport;
    const EmbedFloat& a = arguments;
    with_element(a.weight_dtype, [&](auto packed) {
        with_element(a.out_dtype, [&](auto element) {
            using Weight = decltype(packed);
            using Element = decltype(element);
            parallel_ranges(a.num_tokens, 1 + 8192 / a.in_features, [&](int64_t first, int64_t last) {
                for (int64_t token = first; token < last; ++token) {
                    const int64_t row = a.token_ids[token];
                    copy_row(static_cast<const Weight*>(a.weight) + row / PANEL * a.in_features * PANEL + row % PANEL,
                             static_cast<Element*>(a.out) + token * a.out_stride, a.in_features);
                }
            });
        });
    });
}
