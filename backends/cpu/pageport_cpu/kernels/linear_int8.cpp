// out = x · Wᵀ + bias with packed integer weights: activations are quantised to int8, products are summed exactly in
// int32 over a group of 32 inputs (of 96 with one scale an output), and groups are added in float32 from the first to
// the last.
//
// That sequence is the same for every element, whatever the number of rows and threads.
//
// Or out = silu(gate) * up of that product, gate being its first half.
#include <algorithm>
#include <type_traits>

#include "mathematics.h"
#include "quantised_rows.h"
#include "scratch.h"
#include "thread_pool.h"

namespace pageport {

struct LinearInt8 {
    const void* x;
    const uint8_t* weight;  // panels
    const void* bias;       // or null
    void* out;
    int64_t rows, in_features, out_features;
    int64_t x_stride, out_stride;
    int64_t format;
    int64_t x_dtype, bias_dtype, out_dtype;
    int64_t gated;  // is it silu(gate) * up? Both halves are whole panels then, and out_features those of both.
};

namespace {

// Most rows that are multiplied by one load of the weights. With 32 registers their totals stay in registers.
#if defined(__AVX512F__)
constexpr int BLOCK_ROWS = 16, ROW_UNROLL = 16, MOST_TOGETHER = 8;
#elif defined(__AVX2__)
constexpr int BLOCK_ROWS = 4, ROW_UNROLL = 4, MOST_TOGETHER = 4;
#else
constexpr int BLOCK_ROWS = 8, ROW_UNROLL = 1, MOST_TOGETHER = 1;
#endif
// Rows are taken in chunks whose integers stay in the second-level cache while all panels pass.
constexpr int64_t CHUNK_BYTES = 384 * 1024;
// Panels whose results are stored together, so that rows are written in longer pieces.
constexpr int TILE_PANELS = 4, TILE_OUTPUTS = TILE_PANELS * OUTPUTS;
// Blocks that ask for the next tile's weights while they are multiplied by this one's.
constexpr int64_t MOST_ASKERS = 4;

// Rows of the next block, for each of which there is code of its own; the last rows may be padding.
constexpr int block_rows(int64_t rows_left) {
    if (rows_left > 12) return BLOCK_ROWS;
    if (rows_left > 4 && BLOCK_ROWS > 4) return rows_left > 6 || BLOCK_ROWS == 8 ? 8 : 6;
    return rows_left > 2 ? 4 : static_cast<int>(rows_left);
}

// Rows whose sums are interleaved, so that one does not wait for the other.
constexpr int rows_together(int rows) { return rows < MOST_TOGETHER ? rows : MOST_TOGETHER; }

// Sums of a group start so that OFFSET comes off all its weights.
template <class Format>
inline Sums first_sums(const uint8_t* start) {
    return sums_of(Format::OFFSET == 0 || Format::BITS == CENTRED_BITS ? 0 : read_integer(start));
}

// What a block's products ask the second cache for while they are computed: weights that would otherwise be waited for
// where the next tile begins.
struct Prefetch {
    const uint8_t* next;
    int64_t lines_a_step;  // of CHANNEL_GROUPS groups

    void fetch() {
        for (int64_t i = 0; i < lines_a_step; ++i) __builtin_prefetch(next + i * CACHE_LINE, 0, 2);
        next += lines_a_step * CACHE_LINE;
    }
};

// The products of a block of rows and a panel; rows of `out` lie TILE_OUTPUTS apart.
template <class Format, int ROWS>
void multiply(const uint8_t* record, const uint8_t* x, int64_t num_groups, Prefetch ahead, float* out) {
    constexpr RowsLayout LAYOUT{ROWS, Format::SPLITS};
    constexpr int TOGETHER = rows_together(ROWS), SPLIT_QUADS = QUADS / Format::SPLITS;
    Outputs total[ROWS];
    for (Outputs& t : total) t = zero_outputs();
    for (int64_t done = 0; done < num_groups; done += Format::GROUPS, record += Format::RECORD_BYTES) {
        for (int group = 0; group < Format::GROUPS; ++group, x += LAYOUT.bytes()) {
            if constexpr (ROWS > 1) {
                if ((done + group) % CHANNEL_GROUPS == 0) ahead.fetch();
            }
            const auto* integers = reinterpret_cast<const int8_t*>(x);
            const uint8_t *scales = x + LAYOUT.scale(), *shifts = x + LAYOUT.shift();
            Quad weights[QUADS];
            Format::Integers::load(Format::planes(record, group), weights);
            Outputs minimum;
            if constexpr (Format::HAS_MINIMUM) minimum = Format::minimum(record, group);
#pragma GCC unroll 2
            for (int split = 0; split < Format::SPLITS; ++split) {
                const Outputs scale = Format::scale(record, group, split);
                const uint8_t* starts = x + LAYOUT.start(split);
                const int first_quad = split * SPLIT_QUADS;
#pragma GCC unroll ROW_UNROLL
                for (int row = 0; row < ROWS; row += TOGETHER) {
                    Sums sums[TOGETHER];
                    for (int i = 0; i < TOGETHER; ++i) sums[i] = first_sums<Format>(starts + (row + i) * 4);
                    const int8_t* first = integers + row * GROUP + first_quad * 4;
                    add_products<Format::BITS, SPLIT_QUADS, TOGETHER>(weights + first_quad, first, GROUP, sums);
#pragma GCC unroll 8
                    for (int i = 0; i < TOGETHER; ++i) {
                        const Outputs both = scale * broadcast(read_float(scales + (row + i) * 4));
                        total[row + i] = fma(to_outputs(sums[i]), both, total[row + i]);
                        if constexpr (Format::HAS_MINIMUM)
                            total[row + i] = fma(minimum, broadcast(read_float(shifts + (row + i) * 4)), total[row + i]);
                    }
                }
            }
        }
    }
#pragma GCC unroll ROW_UNROLL
    for (int row = 0; row < ROWS; ++row) store_outputs(out + row * TILE_OUTPUTS, total[row]);
}

// The same with weights that have one scale an output, which multiplies the whole sum, as does the factor of a row.
template <int ROWS>
void multiply_int8(const uint8_t* panel, const uint8_t* x, int64_t num_groups, Prefetch ahead, float* out) {
    using Format = FormatInt8;
    constexpr RowsLayout LAYOUT{ROWS, 1};
    constexpr int TOGETHER = rows_together(ROWS);
    Outputs total[ROWS];
    for (Outputs& t : total) t = zero_outputs();
    const uint8_t *record = panel + Format::PANEL_HEADER_BYTES, *factors = x + LAYOUT.shift();
    for (int64_t done = 0; done < num_groups; done += CHANNEL_GROUPS) {
        const int64_t groups = std::min<int64_t>(CHANNEL_GROUPS, num_groups - done);
        if constexpr (ROWS > 1) ahead.fetch();
        const uint8_t *scales = x + LAYOUT.scale(), *starts = x + LAYOUT.start(0);
#pragma GCC unroll ROW_UNROLL
        for (int row = 0; row < ROWS; row += TOGETHER) {
            Sums sums[TOGETHER];
            for (int i = 0; i < TOGETHER; ++i) sums[i] = first_sums<Format>(starts + (row + i) * 4);
            // Unrolled, the code would not fit the processor's cache of decoded instructions.
#pragma GCC unroll 1
            for (int64_t group = 0; group < groups; ++group) {
                Quad weights[QUADS];
                Format::Integers::load(record + group * Format::RECORD_BYTES, weights);
                const auto* integers = reinterpret_cast<const int8_t*>(x) + group * LAYOUT.bytes();
                add_products<Format::BITS, QUADS, TOGETHER>(weights, integers + row * GROUP, GROUP, sums);
            }
#pragma GCC unroll 8
            for (int i = 0; i < TOGETHER; ++i)
                total[row + i] = fma(to_outputs(sums[i]), broadcast(read_float(scales + (row + i) * 4)), total[row + i]);
        }
        record += groups * Format::RECORD_BYTES;
        x += groups * LAYOUT.bytes();
    }
    const Outputs scale = load_outputs(reinterpret_cast<const float*>(panel));
#pragma GCC unroll ROW_UNROLL
    for (int row = 0; row < ROWS; ++row) {
        const Outputs both = scale * broadcast(read_float(factors + row * 4));
        store_outputs(out + row * TILE_OUTPUTS, total[row] * both);
    }
}

using Multiply = void (*)(const uint8_t* panel, const uint8_t* x, int64_t num_groups, Prefetch, float* out);

struct Kernel {
    int64_t panel_bytes;
    RowsLayout layout;  // rows are filled in a block
    int offset;
    Multiply multiply[BLOCK_ROWS + 1];  // by rows of a block
};

// Calls `function` with each number that `block_rows` returns, as a constant.
template <class Function>
void for_each_block_rows(Function function) {
    function(std::integral_constant<int, 1>{});
    function(std::integral_constant<int, 2>{});
    function(std::integral_constant<int, 4>{});
    if constexpr (block_rows(5) == 6) function(std::integral_constant<int, 6>{});
    if constexpr (BLOCK_ROWS >= 8) function(std::integral_constant<int, 8>{});
    if constexpr (BLOCK_ROWS == 16) function(std::integral_constant<int, 16>{});
}

int64_t num_groups(int64_t in_features) { return (in_features + GROUP - 1) / GROUP; }

Kernel find_kernel(int64_t format, int64_t in_features) {
    Kernel kernel{};
    if (format == CHANNEL_INT8) {
        kernel.panel_bytes = FormatInt8::PANEL_HEADER_BYTES + num_groups(in_features) * FormatInt8::RECORD_BYTES;
        kernel.layout.splits = 1;
        kernel.offset = FormatInt8::OFFSET;
        for_each_block_rows([&](auto rows) { kernel.multiply[rows] = multiply_int8<rows>; });
    }
    with_block_format(format, [&](auto f) {
        using Format = decltype(f);
        kernel.panel_bytes = num_groups(in_features) / Format::GROUPS * Format::RECORD_BYTES;
        kernel.layout.splits = Format::SPLITS;
        kernel.offset = Format::OFFSET;
        for_each_block_rows([&](auto rows) { kernel.multiply[rows] = multiply<Format, rows>; });
    });
    return kernel;
}

// Where a block's integers lie, and the rows it is for; the last rows of `layout` may be padding.
struct Block {
    int64_t first_row;
    int rows;
    RowsLayout layout;
    int64_t offset_bytes;
};

// Blocks of 16 rows come first, so that a block's place follows from its index.
class Blocks {
public:
    Blocks(int64_t rows, int64_t groups, int splits) : groups_(groups), splits_(splits) {
        whole_ = rows / BLOCK_ROWS;
        int64_t first = BLOCK_ROWS * whole_;
        int64_t offset = whole_ * block_bytes(BLOCK_ROWS);
        while (first < rows) {
            const int taken = block_rows(rows - first);
            const int used = static_cast<int>(rows - first < taken ? rows - first : taken);
            rest_[num_rest_++] = {first, used, {taken, splits}, offset};
            first += used;
            offset += block_bytes(taken);
        }
        bytes_ = offset;
    }

    int64_t count() const { return whole_ + num_rest_; }
    int64_t bytes() const { return bytes_; }
    int64_t block_bytes(int rows) const { return groups_ * RowsLayout{rows, splits_}.bytes(); }
    Block at(int64_t index) const {
        if (index >= whole_) return rest_[index - whole_];
        return {index * BLOCK_ROWS, BLOCK_ROWS, {BLOCK_ROWS, splits_}, index * block_bytes(BLOCK_ROWS)};
    }

private:
    int64_t groups_;
    int splits_;
    int64_t whole_ = 0, num_rest_ = 0, bytes_ = 0;
    Block rest_[4];
};

void quantise_block(const LinearInt8& a, const Kernel& kernel, const Block& block, uint8_t* memory) {
    uint8_t* const target = memory + block.offset_bytes;
    with_element(a.x_dtype, [&](auto element) {
        using Element = decltype(element);
        const auto* x = static_cast<const Element*>(a.x) + block.first_row * a.x_stride;
        for (int row = 0; row < block.layout.rows; ++row) {
            // Rows of padding repeat the last one: any numbers will do.
            const RowQuantiser<Element> quantiser(x + (row < block.rows ? row : block.rows - 1) * a.x_stride, a.in_features);
            if (a.format == CHANNEL_INT8) quantiser.fill_for_channels(target, row, block.layout, kernel.offset);
            else quantiser.fill(target, row, block.layout, kernel.offset);
        }
    });
}

// Columns of `out`.
int64_t out_columns(const LinearInt8& a) { return a.gated != 0 ? a.out_features / 2 : a.out_features; }

// The bias of some outputs in float32; zeros where there is none.
struct TileBias {
    float values[TILE_OUTPUTS];

    TileBias(const LinearInt8& a, int64_t first_output, int64_t width) {
        if (a.bias == nullptr) return;
        with_element(a.bias_dtype, [&](auto element) {
            const auto* from = static_cast<const decltype(element)*>(a.bias) + first_output;
            each_vector(width, [&](int64_t i, auto load, auto) { store(values + i, load(from + i)); });
        });
    }
};

void store_tile(const LinearInt8& a, const Block& block, int64_t first_output, int64_t width, const float* results) {
    const TileBias bias(a, first_output, width);
    with_element(a.out_dtype, [&](auto element) {
        for (int row = 0; row < block.rows; ++row) {
            auto* out = static_cast<decltype(element)*>(a.out) + (block.first_row + row) * a.out_stride + first_output;
            const float* from = results + row * TILE_OUTPUTS;
            each_vector(width, [&](int64_t i, auto, auto store) {
                store(out + i, a.bias == nullptr ? load(from + i) : load(from + i) + load(bias.values + i));
            });
        }
    });
}

// The same with products of the same columns of gate and up, which are rounded as if they were stored.
void store_gated_tile(const LinearInt8& a, const Block& block, int64_t first_output, int64_t width, const float* gates,
                      const float* ups) {
    const TileBias gate_bias(a, first_output, width), up_bias(a, a.out_features / 2 + first_output, width);
    with_element(a.out_dtype, [&](auto element) {
        using Element = decltype(element);
        for (int row = 0; row < block.rows; ++row) {
            auto* out = static_cast<Element*>(a.out) + (block.first_row + row) * a.out_stride + first_output;
            for (int64_t i = 0; i < width; i += LANES) {
                Floats gate = load(gates + row * TILE_OUTPUTS + i), up = load(ups + row * TILE_OUTPUTS + i);
                if (a.bias != nullptr) {
                    gate = gate + load(gate_bias.values + i);
                    up = up + load(up_bias.values + i);
                }
                store(out + i, silu(rounded<Element>(gate)) * rounded<Element>(up));
            }
        }
    });
}

// Asks for the cache lines that `store_tile` will write: waiting for them then takes longer than writing.
void prefetch_tile(const LinearInt8& a, const Block& block, int64_t first_output, int64_t width) {
    with_element(a.out_dtype, [&](auto element) {
        constexpr int64_t ELEMENTS = CACHE_LINE / sizeof(element);
        for (int row = 0; row < block.rows; ++row) {
            const auto* out = static_cast<decltype(element)*>(a.out) + (block.first_row + row) * a.out_stride + first_output;
            for (int64_t i = 0; i < width; i += ELEMENTS) __builtin_prefetch(out + i, 1);
        }
    });
}

// Which lines of a panel each of some blocks asks for: the first of those that are large share the work. Few rows wait for
// memory anyway, and the processor sees by itself what comes next.
struct Asking {
    int64_t blocks, lines_a_step, lines_a_block;

    Asking(int64_t rows, int64_t groups, int64_t panel_bytes)
        : blocks(std::min(MOST_ASKERS, (rows + BLOCK_ROWS / 2) / BLOCK_ROWS)) {
        const int64_t steps = (groups + CHANNEL_GROUPS - 1) / CHANNEL_GROUPS, shares = std::max<int64_t>(1, blocks) * steps;
        lines_a_step = (panel_bytes + CACHE_LINE * shares - 1) / (CACHE_LINE * shares);
        lines_a_block = lines_a_step * steps;
    }

    Prefetch of_block(const uint8_t* panel, int64_t block) const {
        return {panel + block * lines_a_block * CACHE_LINE, block < blocks ? lines_a_step : 0};
    }
};

// All rows for the panels [first, last) of columns of `out`.
void multiply_panels(const LinearInt8& a, const Kernel& kernel, const Blocks& blocks, const uint8_t* memory, int64_t first,
                     int64_t last) {
    alignas(64) float results[BLOCK_ROWS * TILE_OUTPUTS], ups[BLOCK_ROWS * TILE_OUTPUTS];
    const int64_t groups = num_groups(a.in_features), columns = out_columns(a), first_up = columns / OUTPUTS;
    const int64_t fitting = CHUNK_BYTES / blocks.block_bytes(BLOCK_ROWS), chunk = fitting < 1 ? 1 : fitting;
    // Threads take turns, more or less: that many panels further on this one will probably go on.
    const int64_t turn = (num_threads() - 1) * (last - first);
    for (int64_t begin = 0; begin < blocks.count(); begin += chunk) {
        const int64_t end = begin + chunk < blocks.count() ? begin + chunk : blocks.count();
        const Asking asking(a.rows - begin * BLOCK_ROWS, groups, kernel.panel_bytes);
        for (int64_t tile = first; tile < last; tile += TILE_PANELS) {
            const int64_t panels = last - tile < TILE_PANELS ? last - tile : TILE_PANELS;
            const int64_t following = tile + panels < last ? panels : panels + turn;
            for (int64_t i = begin; i < end; ++i) {
                const Block block = blocks.at(i);
                const auto multiply = [&](int64_t first_panel, float* to) {
                    for (int64_t panel = 0; panel < panels; ++panel) {
                        const uint8_t* weights = a.weight + (first_panel + panel) * kernel.panel_bytes;
                        kernel.multiply[block.layout.rows](
                            weights, memory + block.offset_bytes, groups,
                            asking.of_block(weights + following * kernel.panel_bytes, i - begin), to + panel * OUTPUTS);
                    }
                };
                const int64_t output = tile * OUTPUTS, left = columns - output;
                const int64_t width = left < panels * OUTPUTS ? left : panels * OUTPUTS;
                prefetch_tile(a, block, output, width);
                multiply(tile, results);
                if (a.gated == 0) {
                    store_tile(a, block, output, width, results);
                    continue;
                }
                multiply(first_up + tile, ups);
                store_gated_tile(a, block, output, width, results, ups);
            }
        }
    }
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(linear_int8, pageport::LinearInt8) {
    using namespace pageport;
    const LinearInt8& a = arguments;
    if (a.rows == 0) return;
    static thread_local Scratch scratch;
    const Kernel kernel = find_kernel(a.format, a.in_features);
    const Blocks blocks(a.rows, num_groups(a.in_features), kernel.layout.splits);
    uint8_t* const memory = scratch.get<uint8_t>(blocks.bytes());

    parallel_ranges(blocks.count(), 1 + 8192 / (a.in_features * BLOCK_ROWS), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) quantise_block(a, kernel, blocks.at(i), memory);
    });

    const int64_t panels = (out_columns(a) + OUTPUTS - 1) / OUTPUTS;
    const auto piece = [&](int64_t first, int64_t last) { multiply_panels(a, kernel, blocks, memory, first, last); };
    if (a.rows > BLOCK_ROWS) {
        parallel_tiles(panels, TILE_PANELS, piece);
        return;
    }
    // A thread gets 2 µs of work at least; where there is much, it comes in smaller pieces, for whoever is free.
    const int64_t smallest = 1 + 16384 / (a.in_features * (a.rows < BLOCK_ROWS ? a.rows + 2 : BLOCK_ROWS));
    const int64_t pieces_per_thread = panels < (a.rows < BLOCK_ROWS ? 16 : 4) * smallest * num_threads() ? 1 : 4;
    parallel_ranges(panels, smallest, piece, pieces_per_thread);
}
