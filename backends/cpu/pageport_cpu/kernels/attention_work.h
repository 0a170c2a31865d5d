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

// Some rows of one request, of every KV head. Row i is head i % group_size of a KV head's group, of the request's query
// i / group_size.
struct Unit {
    int32_t request;
    int64_t first_row;
    int32_t rows;
    int32_t first_split, last_split;  // the last one excluded
    int64_t partials;  // where the sums of its heads' splits are kept, in floats; -1: no head's splits are divided

    int32_t splits() const { return last_split - first_split; }
    // Where the sums of a split are kept; `floats` is what one takes.
    int64_t partial(int32_t kv_head, int64_t split, int64_t floats) const {
        return partials + (kv_head * splits() + split - first_split) * floats;
    }
};

// What one thread does at a time. The heads of a block lie side by side: reading them together is faster by a third.
struct Piece {
    int32_t unit;
    int32_t first_head, last_head;  // KV heads, the last one excluded
    int32_t first_split, last_split;
};

// Few rows share the place of UNIT_ROWS, one head's beside the other's.
constexpr int32_t most_heads(int32_t rows) { return static_cast<int32_t>(UNIT_ROWS) / rows; }

class Work {
public:
    std::vector<Unit> units;
    std::vector<Piece> pieces;     // the costliest first, roughly
    std::vector<int32_t> divided;  // units whose splits are those of several pieces
    int64_t partial_floats = 0;
    int64_t cost = 0;  // pairs of rows and keys

    void clear() {
        units.clear();
        costs_.clear();
        cost = 0;
    }

    void add(const Unit& unit, int64_t kv_heads, int64_t keys) {
        units.push_back(unit);
        costs_.push_back(kv_heads * unit.rows * (keys + UNIT_OVERHEAD));
        cost += costs_.back();
    }

    // Cuts units of `kv_heads` that would keep one of `threads` busy for long; `floats_of(unit)` is what a split's sums
    // take.
    template <class Function>
    void divide(int32_t kv_heads, int threads, const Function& floats_of) {
        const int64_t most = threads == 1 ? cost : cost / (threads * 4) + 1;
        divided.clear();
        partial_floats = 0;
        int64_t places[64] = {};  // of pieces by the size of their cost
        const auto cut = [&](const auto& function) {
            for (size_t i = 0; i < units.size(); ++i) {
                const int32_t splits = std::max(1, units[i].splits());
                const auto wanted = static_cast<int32_t>((costs_[i] + most - 1) / most);
                // By keys first, then by heads.
                const int32_t smallest = divide_up(kv_heads, most_heads(units[i].rows));
                const int32_t head_parts = std::max(smallest, std::min(kv_heads, divide_up(wanted, splits)));
                const int32_t split_parts = std::min(splits, divide_up(wanted, head_parts));
                function(i, head_parts, split_parts, 63 - __builtin_clzll(costs_[i] / (head_parts * split_parts) | 1));
            }
        };
        cut([&](size_t, int32_t head_parts, int32_t split_parts, int size) {
            places[size] += head_parts * split_parts;
        });
        int64_t total = 0;
        for (int size = 63; size >= 0; --size) {
            total += places[size];
            places[size] = total - places[size];
        }
        pieces.resize(total);
        cut([&](size_t i, int32_t head_parts, int32_t split_parts, int size) {
            Unit& unit = units[i];
            if (split_parts > 1) {
                divided.push_back(static_cast<int32_t>(i));
                unit.partials = partial_floats;
                partial_floats += kv_heads * unit.splits() * floats_of(unit);
            }
            for (int32_t part = 0; part < split_parts; ++part) {
                for (int32_t head = 0; head < head_parts; ++head) {
                    pieces[places[size]++] = {static_cast<int32_t>(i), kv_heads * head / head_parts,
                                              kv_heads * (head + 1) / head_parts,
                                              unit.first_split + unit.splits() * part / split_parts,
                                              unit.first_split + unit.splits() * (part + 1) / split_parts};
                }
            }
        });
    }

private:
    static int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

    std::vector<int64_t> costs_;
};

}  // namespace pageport
