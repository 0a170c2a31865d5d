// Rows of GGML blocks become panels.
#include "kernel.h"
#include "panels.h"
#include "thread_pool.h"

namespace pageport {

struct PackBlocks {
    const uint8_t* blocks;  // [rows, in_features / weights a block]
    uint8_t* panels;
    int64_t blocks_stride;  // bytes from row to row
    int64_t rows, first_row;  // rows to pack, and where the first one goes
    int64_t in_features;
    int64_t format;
};

}  // namespace pageport

PAGEPORT_KERNEL(pack_blocks, pageport::PackBlocks) {
    using namespace pageport;
    const PackBlocks& a = arguments;
    with_block_format(a.format, [&](auto f) {
        using Format = decltype(f);
        const int64_t records = a.in_features / (GROUP * Format::GROUPS);
        const int64_t first_panel = a.first_row / OUTPUTS, end_row = a.first_row + a.rows;
        const int64_t panels = (end_row + OUTPUTS - 1) / OUTPUTS - first_panel;
        parallel_ranges(panels, 1, [&](int64_t first, int64_t last) {
            for (int64_t panel = first_panel + first; panel < first_panel + last; ++panel) {
                for (int64_t record = 0; record < records; ++record) {
                    uint8_t* to = a.panels + (panel * records + record) * Format::RECORD_BYTES;
                    for (int output = 0; output < OUTPUTS; ++output) {
                        const int64_t row = panel * OUTPUTS + output - a.first_row;
                        if (row < 0 || row >= a.rows) continue;
                        Format::pack(a.blocks + row * a.blocks_stride + record * Format::BLOCK_BYTES, to, output);
                    }
                }
            }
        }, 4);
    });
}
