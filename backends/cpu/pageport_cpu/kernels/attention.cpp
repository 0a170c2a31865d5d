// Attention over the paged cache: softmax(softcap(q·k·scale) + alibi + mask)·v, for decodes and prefills alike.
#include "attention_cache.h"
#include "attention_integers.h"
#include "attention_products.h"
#include "attention_rows.h"
#include "attention_work.h"
#include "scratch.h"
#include "softmax.h"
#include "thread_pool.h"

namespace pageport {

namespace {

Floats lane_numbers() {
    static const struct Numbers {
        float values[LANES];
        Numbers() {
            for (int i = 0; i < LANES; ++i) values[i] = static_cast<float>(i);
        }
    } numbers;
    return load(numbers.values);
}

// Turns one row's products into weights, and lets `partial` know of their peak and their sum. What `seen` leaves out of
// its vectors becomes 0 if there are scales.
void weigh(const Attention& a, const Rows& rows, int row, TileRange seen, int64_t tile_start, const TileScales& scales,
           Partial& partial) {
    float* scores = rows.scores + row * TILE_KEYS;
    const Floats hidden = broadcast(-std::numeric_limits<float>::infinity());
    const Floats lanes = lane_numbers();
    const float cap = static_cast<float>(a.softcap) * LOG2_E;
    Floats highest = hidden;
    const auto hide = [&](int start, Floats x, Floats instead) {
        const auto lanes_before = [&](int key) { return less(lanes, broadcast(static_cast<float>(key - start))); };
        if (start < seen.first) x = select(lanes_before(seen.first), instead, x);
        return start + LANES > seen.last ? select(lanes_before(seen.last), x, instead) : x;
    };
    for (int v = seen.first_vector(); v < seen.last_vector(); ++v) {
        const int start = v * LANES;
        Floats score = load(scores + start);
        if (a.key_scales != nullptr) score = score * load(scales.keys[v]);
        if (a.softcap > 0) score = tanh(score) * broadcast(cap);
        if (a.slopes != nullptr) {
            const Floats distance = lanes + broadcast(static_cast<float>(tile_start + start) - rows.position[row]);
            score = fma(distance, broadcast(rows.slope[row]), score);
        }
        score = hide(start, score, hidden);
        highest = max(highest, score);
        store(scores + start, score);
    }
    const Floats peak = broadcast(partial.raise_peak(row, reduce_max(highest)));
    Floats total = load(partial.total + row * LANES);
    for (int v = seen.first_vector(); v < seen.last_vector(); ++v) {
        Floats weight = exp2(load(scores + v * LANES) - peak);
        total = total + weight;
        // The scale of a token that is not there may be NaN.
        if (a.value_scales != nullptr) weight = hide(v * LANES, weight * load(scales.values[v]), broadcast(0.0f));
        store(scores + v * LANES, weight);
    }
    store(partial.total + row * LANES, total);
}

// Adds keys first … last - 1 of the tile to `count` rows, whatever their number of rows and columns.
template <class Stored>
void add_values(const Rows& rows, int row, int count, const Tile<Stored>& tile, TileRange keys, Partial& partial) {
    if (keys.empty()) return;
    with_rows(count, [&](auto rows_constant) {
        each_piece(static_cast<int>(partial.sums_stride / LANES), [&](auto vectors, int first) {
            multiply_values<Stored, rows_constant(), vectors()>(
                rows.scores + row * TILE_KEYS, tile, keys.first, keys.last, first * LANES,
                partial.sums + row * partial.sums_stride + first * LANES, partial.sums_stride);
        });
    });
}

// Extends `partial` by one tile of keys.
template <class Stored>
void add_tile(const Attention& a, const Rows& rows, const Tile<Stored>& tile, const TileScales& scales,
              int64_t tile_start, Partial& partial) {
    const int blocks = (rows.count + MOST_ROWS - 1) / MOST_ROWS;
    const auto first_row = [&](int block) { return rows.count * block / blocks; };
    for (int block = 0; block < blocks; ++block) {
        const int first = first_row(block), last = first_row(block + 1);
        const TileRange seen = within({rows.seen[first].first, rows.seen[last - 1].last}, tile_start);
        if (seen.empty()) continue;
        with_rows(last - first, [&](auto count) {
            each_piece(seen.last_vector() - seen.first_vector(), [&](auto vectors, int v) {
                v += seen.first_vector();
                multiply_keys<Stored, count(), vectors()>(
                    rows.query + first * rows.query_stride, rows.query_stride, tile, v, a.head_size,
                    rows.scores + first * TILE_KEYS + v * LANES);
            });
        });
        for (int row = first; row < last; ++row) {
            const TileRange range = within(rows.seen[row], tile_start);
            if (!range.empty()) weigh(a, rows, row, range, tile_start, scales, partial);
        }
    }
    for (int block = 0; block < blocks; ++block) {
        const int first = first_row(block), last = first_row(block + 1);
        const TileRange lowest = within(rows.seen[first], tile_start);
        const TileRange highest = within(rows.seen[last - 1], tile_start);
        // All rows see these; what only some of them see is added to those alone, and in order.
        const TileRange common = {highest.first, lowest.last};
        const auto each_query = [&](const auto& function) {
            for (int row = first, end; row < last; row = end) {
                for (end = row + 1; end < last && rows.seen[end].last == rows.seen[row].last
                                    && rows.seen[end].first == rows.seen[row].first; ++end) {
                }
                function(row, end - row, within(rows.seen[row], tile_start));
            }
        };
        if (common.empty()) {
            each_query([&](int row, int count, TileRange range) {
                add_values(rows, row, count, tile, range, partial);
            });
            continue;
        }
        if (lowest.first < common.first) {
            each_query([&](int row, int count, TileRange range) {
                add_values(rows, row, count, tile, {range.first, common.first}, partial);
            });
        }
        add_values(rows, first, last - first, tile, common, partial);
        if (common.last < highest.last) {
            each_query([&](int row, int count, TileRange range) {
                add_values(rows, row, count, tile, {common.last, range.last}, partial);
            });
        }
    }
}

// The same with integers, which a weight of 0 takes nothing of: rows need not see the same keys.
void add_tile(const Attention& a, Rows& rows, const Tile<Int8>& tile, const TileScales& scales,
              int64_t tile_start, Partial& partial) {
    const int blocks = (rows.count + INTEGER_ROWS - 1) / INTEGER_ROWS;
    for (int block = 0; block < blocks; ++block) {
        const int first = rows.count * block / blocks, last = rows.count * (block + 1) / blocks;
        const TileRange seen = within({rows.seen[first].first, rows.seen[last - 1].last}, tile_start);
        if (seen.empty()) continue;
        with_rows(last - first, [&](auto count) {
            const int first_group = seen.first / OUTPUTS, end = (seen.last + OUTPUTS - 1) / OUTPUTS;
            each_piece<INTEGER_GROUPS>(end - first_group, [&](auto groups, int group) {
                multiply_keys<count(), groups()>(rows.integers, first, tile, first_group + group,
                                                 stored_features<Int8>(a.head_size) / 4, rows.scores);
            });
        });
        for (int row = first; row < last; ++row) {
            const TileRange range = within(rows.seen[row], tile_start);
            if (range.empty()) {
                rows.weights.clear(row);
                continue;
            }
            weigh(a, rows, row, range, tile_start, scales, partial);
            Floats weights[TILE_VECTORS];
            for (int v = 0; v < TILE_VECTORS; ++v) {
                const bool is_seen = v >= range.first_vector() && v < range.last_vector();
                weights[v] = is_seen ? load(rows.scores + row * TILE_KEYS + v * LANES) : broadcast(0.0f);
            }
            rows.weights.round_weights<TILE_VECTORS>(row, weights);
        }
        with_rows(last - first, [&](auto count) {
            each_piece<INTEGER_GROUPS>(static_cast<int>(partial.sums_stride / OUTPUTS), [&](auto groups, int group) {
                multiply_values<count(), groups()>(rows.weights, first, tile, seen.first / 4, (seen.last + 3) / 4,
                                                   group * OUTPUTS, partial.sums, partial.sums_stride);
            });
        });
    }
}

// The rows of one KV head, and what they read.
template <class Stored>
struct Head {
    int32_t kv_head;
    Cache<Stored> cache;
    Rows rows;             // left unset
    Partial all, partial;  // of the splits before, and of the one that is being summed

    Head(int32_t number, const Cache<Stored>& read, const Partial& before, const Partial& current)
        : kv_head(number), cache(read), all(before), partial(current) {}
};

template <class Stored>
using Heads = std::vector<Head<Stored>>;

// What a piece's head reads.
template <class Stored>
Cache<Stored> cache_of(const Attention& a, const Unit& unit, const Piece& piece, int32_t kv_head) {
    const KeyRange seen = unit_keys(a, unit);
    return {a, a.block_table + unit.request * a.block_table_stride, kv_head,
            {std::max(seen.first, piece.first_split * SPLIT_KEYS), std::min(seen.last, piece.last_split * SPLIT_KEYS)}};
}

// Sums the keys of one split; after the last of all, `following` is probably read.
template <class Stored>
void add_split(const Attention& a, const Unit& unit, Heads<Stored>& heads, const Ahead& following, int64_t split) {
    const KeyRange read = heads[0].cache.read;
    const KeyRange keys = {std::max(read.first, split * SPLIT_KEYS), std::min(read.last, (split + 1) * SPLIT_KEYS)};
    const bool has_many_rows = unit.rows > MOST_ROWS;
    for (Head<Stored>& head : heads) head.partial.clear(unit.rows);
    for (int64_t start = first_tile(keys); start < keys.last; start += TILE_KEYS) {
        const TileRange seen = within(read, start);
        Ahead ahead;
        // Many rows work on a tile for so long that there is nothing to hide.
        if (!has_many_rows) {
            if (start + TILE_KEYS >= read.last) ahead = following;
            else plan_fetches(heads[0].cache, static_cast<int64_t>(heads.size()), start + TILE_KEYS, ahead);
        }
        for (Head<Stored>& head : heads) {
            Tile<Stored> tile;
            TileScales scales;
            tile.ahead = &ahead;
            locate_tile(head.cache, start, seen, tile, scales);
            if constexpr (!std::is_same_v<Stored, float> && !std::is_same_v<Stored, Int8>) {
                if (has_many_rows) {
                    add_tile(a, head.rows, convert(a, tile, seen, head.rows.converted), scales, start, head.partial);
                    continue;
                }
            }
            add_tile(a, head.rows, tile, scales, start, head.partial);
        }
        ahead.fetch_rest();
    }
}

template <class Stored>
void run_piece(const Attention& a, const Work& work, int64_t index, float* partials) {
    static thread_local Scratch scratch;
    static thread_local Heads<Stored> heads;
    const Piece& piece = work.pieces[index];
    const Unit& unit = work.units[piece.unit];
    const int64_t stride = padded(a.value_head_size), floats = partial_floats(a, unit.rows);
    const int64_t query_floats = UNIT_ROWS * row_stride(a), score_floats = UNIT_ROWS * TILE_KEYS;
    const int64_t tile_floats = TILE_KEYS * (a.head_size + stride);
    const int64_t num_heads = piece.last_head - piece.first_head;
    float* queries = scratch.get<float>(query_floats + score_floats + tile_floats + 2 * floats * num_heads);
    float *scores = queries + query_floats, *converted = scores + score_floats, *sums = converted + tile_floats;
    // Nothing is converted where there are integers.
    auto* integers = reinterpret_cast<uint8_t*>(converted);
    heads.clear();
    heads.reserve(num_heads);
    for (int32_t kv_head = piece.first_head; kv_head < piece.last_head; ++kv_head) {
        const int64_t first_row = (kv_head - piece.first_head) * unit.rows;
        heads.emplace_back(kv_head, cache_of<Stored>(a, unit, piece, kv_head), Partial(sums, unit.rows, stride),
                           Partial(sums + floats, unit.rows, stride));
        sums += 2 * floats;
        Rows& rows = heads.back().rows;
        rows.query = queries + first_row * row_stride(a);
        rows.scores = scores;
        rows.converted = converted;
        rows.integers.stride = row_stride(a);
        rows.integers.integers = integers + first_row * rows.integers.stride;
        rows.weights.integers = integers + UNIT_ROWS * rows.integers.stride;
        rows.weights.stride = TILE_KEYS;
        load_rows<Stored>(a, unit, kv_head, rows);
    }
    // Threads take turns, more or less: this one will probably get the piece that is so many further on.
    const size_t guess = index + num_threads();
    Ahead following;
    if (guess < work.pieces.size()) {
        const Piece& next = work.pieces[guess];
        const Cache<Stored> cache = cache_of<Stored>(a, work.units[next.unit], next, next.first_head);
        plan_fetches(cache, next.last_head - next.first_head, first_tile(cache.read), following);
    }
    if (unit.partials >= 0) {
        for (int64_t split = piece.first_split; split < piece.last_split; ++split) {
            for (Head<Stored>& head : heads) {
                head.partial = {partials + unit.partial(head.kv_head, split, floats), unit.rows, stride};
            }
            add_split(a, unit, heads, following, split);
        }
        return;
    }
    for (Head<Stored>& head : heads) head.all.clear(unit.rows);
    for (int64_t split = piece.first_split; split < piece.last_split; ++split) {
        add_split(a, unit, heads, following, split);
        for (Head<Stored>& head : heads) head.all.merge(head.partial, unit.rows);
    }
    for (const Head<Stored>& head : heads) store_rows<Stored>(a, unit, head.kv_head, head.all);
}

// Merges the splits of one KV head of a unit that several pieces have summed.
template <class Stored>
void merge_head(const Attention& a, const Unit& unit, int32_t kv_head, float* partials) {
    static thread_local Scratch scratch;
    const int64_t stride = padded(a.value_head_size), floats = partial_floats(a, unit.rows);
    Partial all(scratch.get<float>(floats), unit.rows, stride);
    all.clear(unit.rows);
    for (int64_t split = unit.first_split; split < unit.last_split; ++split) {
        all.merge(Partial(partials + unit.partial(kv_head, split, floats), unit.rows, stride), unit.rows);
    }
    store_rows<Stored>(a, unit, kv_head, all);
}

// Tokens behind those of all requests are padding, too.
void clear_padding(const Attention& a) {
    with_element(a.dtype, [&](auto element) {
        using Element = decltype(element);
        for (int64_t token = a.query_start_loc[a.num_requests]; token < a.num_tokens; ++token) {
            for (int64_t head = 0; head < a.heads; ++head) {
                void* to = static_cast<Element*>(a.out) + token * a.out_token_stride + head * a.out_head_stride;
                std::memset(to, 0, a.value_head_size * sizeof(Element));
            }
        }
    });
}

void plan_work(const Attention& a, Work& work) {
    const int64_t group = a.heads / a.kv_heads;
    work.clear();
    for (int64_t request = 0; request < a.num_requests; ++request) {
        const int64_t rows = (a.query_start_loc[request + 1] - a.query_start_loc[request]) * group;
        for (int64_t first = 0; first < rows; first += UNIT_ROWS) {
            const auto count = static_cast<int32_t>(std::min(UNIT_ROWS, rows - first));
            Unit unit{static_cast<int32_t>(request), first, count, 0, 0, -1};
            const KeyRange keys = unit_keys(a, unit);
            if (keys.first < keys.last) {
                unit.first_split = static_cast<int32_t>(keys.first / SPLIT_KEYS);
                unit.last_split = static_cast<int32_t>((keys.last + SPLIT_KEYS - 1) / SPLIT_KEYS);
            }
            work.add(unit, a.kv_heads, keys.last - keys.first);
        }
    }
    work.divide(static_cast<int32_t>(a.kv_heads), num_threads(),
                [&](const Unit& unit) { return partial_floats(a, unit.rows); });
}

// Products of a row and a key that are worth a second thread.
constexpr int64_t SMALLEST_PARALLEL_COST = 1 << 11;

template <class Stored>
void attend(const Attention& a) {
    static thread_local Work own_work;
    static thread_local Scratch scratch;
    // Other threads have their own variables of these names.
    Work& work = own_work;
    clear_padding(a);
    plan_work(a, work);
    float* partials = scratch.get<float>(work.partial_floats);
    const int64_t count = static_cast<int64_t>(work.pieces.size());
    const auto run = [&](int64_t i) { run_piece<Stored>(a, work, i, partials); };
    if (work.cost < SMALLEST_PARALLEL_COST) {
        for (int64_t i = 0; i < count; ++i) run(i);
    } else {
        parallel_for(count, run);
    }
    parallel_for(static_cast<int64_t>(work.divided.size()) * a.kv_heads, [&](int64_t i) {
        const Unit& unit = work.units[work.divided[i / a.kv_heads]];
        merge_head<Stored>(a, unit, static_cast<int32_t>(i % a.kv_heads), partials);
    });
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(attention, pageport::Attention) {
    pageport::with_stored(arguments.stored_dtype, [&](auto stored) { pageport::attend<decltype(stored)>(arguments); });
}
