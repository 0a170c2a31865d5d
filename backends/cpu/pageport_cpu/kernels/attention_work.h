// How a step's attention is divided among threads. The division depends on their number and on the batch; results do
// not: a row's keys are always summed in splits at fixed positions, which are always merged in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pageport {

// Keys whose sums are merged as one, from multiples of this position on.
constexpr int64_t SPLIT_KEYS = 512;
// Rows that read keys and values together: query heads that share them, of consecutive queries.
constexpr int64_t UNIT_ROWS = 48;
// What a unit costs whatever the number of its keys, in keys.
constexpr int64_t UNIT_OVERHEAD = 32;

// Some rows of one request and KV head. Row i is head i % group_size of the group, of the request's query
// i / group_size.
struct Unit {
    int32_t request, kv_head;
    int64_t first_row;
    int32_t rows;
    int32_t first_split, last_split;  // the last one excluded
    int64_t partials;                 // where its splits' sums are kept, in floats; -1: one piece does all of it
};

// What one thread does at a time.
struct Piece {
    int32_t unit;
    int32_t first_split, last_split;
};

class Work {
public:
    std::vector<Unit> units;
    std::vector<Piece> pieces;  // the costliest first, roughly
    std::vector<int32_t> divided;  // units of several pieces
    int64_t partial_floats = 0;
    int64_t cost = 0;  // pairs of rows and keys

    void clear() {
        units.clear();
        costs_.clear();
        cost = 0;
    }

    void add(const Unit& unit, int64_t keys) {
        units.push_back(unit);
        costs_.push_back(unit.rows * (keys + UNIT_OVERHEAD));
        cost += costs_.back();
    }

    // Cuts units that would keep one of `threads` busy for long; `floats_of(unit)` is what a split's sums take.
    template <class Function>
    void divide(int threads, const Function& floats_of) {
        const int64_t most = threads == 1 ? cost : cost / (threads * 4) + 1;
        divided.clear();
        partial_floats = 0;
        int64_t places[64] = {};  // of pieces by the size of their cost
        const auto cut = [&](const auto& function) {
            for (size_t i = 0; i < units.size(); ++i) {
                const int64_t splits = units[i].last_split - units[i].first_split;
                const int64_t wanted = (costs_[i] + most - 1) / most;
                const int64_t count = std::max<int64_t>(1, std::min(wanted, splits));
                function(i, splits, count, 63 - __builtin_clzll(costs_[i] / count | 1));
            }
        };
        cut([&](size_t, int64_t, int64_t count, int size) { places[size] += count; });
        int64_t total = 0;
        for (int size = 63; size >= 0; --size) {
            total += places[size];
            places[size] = total - places[size];
        }
        pieces.resize(total);
        cut([&](size_t i, int64_t splits, int64_t count, int size) {
            Unit& unit = units[i];
            if (count > 1) {
                divided.push_back(static_cast<int32_t>(i));
                unit.partials = partial_floats;
                partial_floats += splits * floats_of(unit);
            }
            for (int64_t piece = 0; piece < count; ++piece) {
                pieces[places[size]++] = {static_cast<int32_t>(i),
                                          static_cast<int32_t>(unit.first_split + splits * piece / count),
                                          static_cast<int32_t>(unit.first_split + splits * (piece + 1) / count)};
            }
        });
    }

private:
    std::vector<int64_t> costs_;
};

}  // namespace pageport
