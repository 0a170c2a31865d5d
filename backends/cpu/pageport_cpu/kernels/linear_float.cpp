// x · Wᵀ + bias for packed float weights, in float32.
//
// An output is one lane of an accumulator that starts at 0 and takes its products in the order of the inputs, by fma,
// then the bias: the same operations for any number of rows, tiles and threads.
//
// Or silu(gate) * up of that product, gate being its first half.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "float_weight.h"
#include "mathematics.h"
#include "scratch.h"
#include "thread_pool.h"

namespace pageport {

struct LinearFloat {
    const void* weight;
    const void* x;
    const void* bias;  // null, or a value an output
    void* out;
    int64_t rows, in_features, out_features;
    int64_t x_stride, out_stride;
    int64_t weight_dtype, x_dtype, out_dtype, bias_dtype;
    int64_t gated;  // is it silu(gate) * up? Both halves are whole panels then, and out_features those of both.
};

namespace {

// Rows of a tile: its accumulators, two weights and one input fill the vector registers.
constexpr int TILE_ROWS = LANES == 16 ? 14 : LANES == 8 ? 6 : 4;
// Inputs of a tile: its weights and rows fit the caches next to the core.
constexpr int64_t TILE_INPUTS = 256;
// From row to row of x in scratch; the odd line keeps rows out of each other's cache sets.
constexpr int64_t X_STRIDE = TILE_INPUTS + 16;
// Tiles of rows that use a panel before the next panel: their x stays in the second cache.
constexpr int64_t CHUNK_TILES = 8;
// Values that are worth another thread.
constexpr int64_t SMALLEST_WORK = 16384;

// What a tile asks the second cache for while it computes: the following weights, `step` bytes an input.
struct Prefetch {
    const char* first;
    int64_t step;
};

// With fewer rows a tile waits for memory anyway, and the processor sees by itself what comes next.
template <int ROWS>
constexpr bool PREFETCHES = ROWS > TILE_ROWS / 3;

// Adds the products of ROWS rows and a panel, over `count` inputs, to `sums` [ROWS, PANEL], or sets them to the first.
template <int ROWS, class Weight>
void multiply_tile(const float* x, const Weight* weights, int64_t count, float* sums, bool first, Prefetch ahead) {
    Floats a[ROWS], b[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        a[r] = first ? broadcast(0.0f) : load(sums + r * PANEL);
        b[r] = first ? broadcast(0.0f) : load(sums + r * PANEL + LANES);
    }
    for (int64_t k = 0; k < count; ++k) {
        const Floats weight_a = load(weights + k * PANEL), weight_b = load(weights + k * PANEL + LANES);
        if constexpr (PREFETCHES<ROWS>) {
            for (int64_t i = 0; i < PANEL * int64_t{sizeof(Weight)}; i += CACHE_LINE) {
                __builtin_prefetch(ahead.first + k * ahead.step + i, 0, 2);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const Floats value = broadcast(x[r * X_STRIDE + k]);
            a[r] = fma(value, weight_a, a[r]);
            b[r] = fma(value, weight_b, b[r]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        store(sums + r * PANEL, a[r]);
        store(sums + r * PANEL + LANES, b[r]);
    }
}

template <class Weight>
using Tile = void (*)(const float*, const Weight*, int64_t, float*, bool, Prefetch);

template <class Weight, size_t... Rows>
constexpr Tile<Weight> tile_of(int64_t rows, std::index_sequence<Rows...>) {
    constexpr Tile<Weight> tiles[] = {multiply_tile<static_cast<int>(Rows + 1), Weight>...};
    return tiles[rows - 1];
}

template <class Weight>
void multiply(const float* x, const Weight* weights, int64_t rows, int64_t count, float* sums, bool first,
              Prefetch ahead) {
    tile_of<Weight>(rows, std::make_index_sequence<TILE_ROWS>{})(x, weights, count, sums, first, ahead);
}

// The product of one call, cut into units: a chunk of row tiles times a panel.
class Product {
public:
    Product(const LinearFloat& arguments, float* x)
        : a_(arguments),
          x_(x),
          num_tiles_(divide_up(a_.rows, TILE_ROWS)),
          panels_(num_panels(a_.gated != 0 ? a_.out_features / 2 : a_.out_features)),
          block_inputs_(divide_up(a_.in_features, divide_up(a_.in_features, TILE_INPUTS))) {}

    int64_t num_units() const { return divide_up(num_tiles_, CHUNK_TILES) * panels_; }

    // Copies rows [first, last) of x to scratch as float32: [blocks of inputs, all but the last equal][rows][X_STRIDE].
    void convert_rows(int64_t first, int64_t last) const {
        with_element(a_.x_dtype, [&](auto element) {
            using Element = decltype(element);
            for (int64_t row = first; row < last; ++row) {
                const auto* from = static_cast<const Element*>(a_.x) + row * a_.x_stride;
                for (int64_t start = 0; start < a_.in_features; start += block_inputs_) {
                    float* to = x_at(row, start);
                    each_vector(std::min(block_inputs_, a_.in_features - start), [&](int64_t i, auto load, auto store) {
                        store(to + i, load(from + start + i));
                    });
                }
            }
        });
    }

    void run_unit(int64_t unit) const {
        static thread_local Scratch scratch;
        const int64_t first_tile = unit / panels_ * CHUNK_TILES, panel = unit % panels_;
        const int64_t last_tile = std::min(first_tile + CHUNK_TILES, num_tiles_);
        const int64_t row = first_row(first_tile), rows = first_row(last_tile) - row;
        float* sums = scratch.get<float>((2 * rows + TILE_INPUTS) * PANEL);
        float *ups = sums + rows * PANEL, *converted = ups + rows * PANEL;
        with_element(a_.weight_dtype, [&](auto element) {
            using Weight = decltype(element);
            sum_panel<Weight>(first_tile, last_tile, panel, sums, converted);
            if (a_.gated != 0) sum_panel<Weight>(first_tile, last_tile, panels_ + panel, ups, converted);
        });
        if (a_.gated != 0) store_gated_panel(sums, ups, row, rows, panel * PANEL);
        else store_panel(sums, row, rows, panel * PANEL);
    }

private:
    int64_t first_row(int64_t tile) const { return a_.rows * tile / num_tiles_; }
    float* x_at(int64_t row, int64_t input) const { return x_ + (input / block_inputs_ * a_.rows + row) * X_STRIDE; }

    // Writes the products of some tiles and a panel to `sums`; `converted` holds a block of weights in float32.
    template <class Weight>
    void sum_panel(int64_t first_tile, int64_t last_tile, int64_t panel, float* sums, float* converted) const {
        const int64_t tiles = last_tile - first_tile, row_begin = first_row(first_tile);
        const Weight* weights = static_cast<const Weight*>(a_.weight) + panel * a_.in_features * PANEL;
        for (int64_t start = 0; start < a_.in_features; start += block_inputs_) {
            const int64_t count = std::min(block_inputs_, a_.in_features - start);
            const Weight* block = weights + start * PANEL;
            // The tiles share the work of asking for the block that follows.
            const int64_t block_bytes = count * PANEL * int64_t{sizeof(Weight)};
            const char* next = reinterpret_cast<const char*>(block) + block_bytes;
            const auto multiply_tiles = [&](const auto* values) {
                for (int64_t tile = first_tile; tile < last_tile; ++tile) {
                    const int64_t row = first_row(tile);
                    const Prefetch ahead{next + block_bytes * (tile - first_tile) / tiles, block_bytes / count / tiles};
                    multiply(x_at(row, start), values, first_row(tile + 1) - row, count,
                             sums + (row - row_begin) * PANEL, start == 0, ahead);
                }
            };
            if constexpr (!std::is_same_v<Weight, float>) {
                if (tiles > 1) {
                    for (int64_t i = 0; i < count * PANEL; i += LANES) store(converted + i, load(block + i));
                    multiply_tiles(converted);
                    continue;
                }
            }
            multiply_tiles(block);
        }
    }

    void load_bias(int64_t output, int64_t outputs, float* bias) const {
        if (a_.bias == nullptr) return;
        with_element(a_.bias_dtype, [&](auto element) {
            const auto* from = static_cast<const decltype(element)*>(a_.bias) + output;
            each_vector(outputs, [&](int64_t i, auto load, auto store) { store(bias + i, load(from + i)); });
        });
    }

    void store_panel(const float* sums, int64_t row_begin, int64_t rows, int64_t output) const {
        const int64_t outputs = std::min(PANEL, a_.out_features - output);
        float bias[PANEL];
        load_bias(output, outputs, bias);
        with_element(a_.out_dtype, [&](auto element) {
            for (int64_t row = 0; row < rows; ++row) {
                auto* out = static_cast<decltype(element)*>(a_.out) + (row_begin + row) * a_.out_stride + output;
                each_vector(outputs, [&](int64_t i, auto load, auto store) {
                    const Floats sum = load(sums + row * PANEL + i);
                    store(out + i, a_.bias == nullptr ? sum : sum + load(bias + i));
                });
            }
        });
    }

    // The sums of the same columns of gate and up, rounded as if they were stored.
    void store_gated_panel(const float* gates, const float* ups, int64_t row_begin, int64_t rows, int64_t output) const {
        float gate_bias[PANEL], up_bias[PANEL];
        load_bias(output, PANEL, gate_bias);
        load_bias(a_.out_features / 2 + output, PANEL, up_bias);
        with_element(a_.out_dtype, [&](auto element) {
            using Element = decltype(element);
            for (int64_t row = 0; row < rows; ++row) {
                auto* out = static_cast<Element*>(a_.out) + (row_begin + row) * a_.out_stride + output;
                for (int64_t i = 0; i < PANEL; i += LANES) {
                    Floats gate = load(gates + row * PANEL + i), up = load(ups + row * PANEL + i);
                    if (a_.bias != nullptr) {
                        gate = gate + load(gate_bias + i);
                        up = up + load(up_bias + i);
                    }
                    store(out + i, silu(rounded<Element>(gate)) * rounded<Element>(up));
                }
            }
        });
    }

    const LinearFloat& a_;
    float* x_;
    int64_t num_tiles_, panels_, block_inputs_;
};

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(linear_float, pageport::LinearFloat) {
    using namespace pageport;
    const LinearFloat& a = arguments;
    static thread_local Scratch scratch;
    float* x = scratch.get<float>(divide_up(a.in_features, TILE_INPUTS) * a.rows * X_STRIDE);
    const Product product(a, x);
    parallel_ranges(a.rows, 1 + SMALLEST_WORK / a.in_features,
                    [&](int64_t first, int64_t last) { product.convert_rows(first, last); });
    const auto run_units = [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; ++unit) product.run_unit(unit);
    };
    if (a.rows > CHUNK_TILES) {
        parallel_tiles(product.num_units(), 1, run_units);
        return;
    }
    const int64_t smallest = 1 + SMALLEST_WORK / (a.in_features * PANEL);
    constexpr int64_t PIECES_PER_THREAD = 4;  // one that is held up leaves its later pieces to the others
    parallel_ranges(product.num_units(), smallest, run_units, PIECES_PER_THREAD);
}
