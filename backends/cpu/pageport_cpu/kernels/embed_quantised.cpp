// Rows of a packed matrix, dequantised.
#include "elements.h"
#include "panels.h"
#include "thread_pool.h"

namespace pageport {

struct EmbedQuantised {
    const uint8_t* weight;  // panels
    const int64_t* token_ids;
    void* out;
    int64_t rows, in_features;
    int64_t out_stride;
    int64_t format;
    int64_t dtype;
};

namespace {

// `next(weights)` fills in the next weights of a row, `count` at a time.
template <class Element, class Next>
void write_row(Element* out, int64_t features, int64_t count, Next next) {
    float weights[256];
    for (int64_t first = 0; first < features; first += count) {
        next(weights);
        const int64_t width = features - first < count ? features - first : count;
        each_vector(width, [&](int64_t i, auto, auto store) { store(out + first + i, load(weights + i)); });
    }
}

template <class Element>
void embed_row(const EmbedQuantised& a, int64_t token_id, Element* out) {
    const int64_t panel = token_id / OUTPUTS;
    const int output = static_cast<int>(token_id % OUTPUTS);
    const int64_t groups = (a.in_features + GROUP - 1) / GROUP;
    if (a.format == CHANNEL_INT8) {
        const uint8_t* start = a.weight + panel * (FormatInt8::PANEL_HEADER_BYTES + groups * FormatInt8::RECORD_BYTES);
        const uint8_t* record = start + FormatInt8::PANEL_HEADER_BYTES;
        write_row(out, a.in_features, GROUP, [&](float* weights) {
            FormatInt8::dequantise(record, output, read_float(start + 4 * output), weights);
            record += FormatInt8::RECORD_BYTES;
        });
    }
    with_block_format(a.format, [&](auto f) {
        using Format = decltype(f);
        const uint8_t* record = a.weight + panel * (groups / Format::GROUPS) * Format::RECORD_BYTES;
        write_row(out, a.in_features, GROUP * Format::GROUPS, [&](float* weights) {
            Format::dequantise(record, output, weights);
            record += Format::RECORD_BYTES;
        });
    });
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(embed_quantised, pageport::EmbedQuantised) {
    using namespace pageport;
    const EmbedQuantised& a = arguments;
    with_element(a.dtype, [&](auto element) {
        parallel_ranges(a.rows, 1 + 16384 / a.in_features, [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; ++row)
                embed_row(a, a.token_ids[row], static_cast<decltype(element)*>(a.out) + row * a.out_stride);
        });
    });
}
