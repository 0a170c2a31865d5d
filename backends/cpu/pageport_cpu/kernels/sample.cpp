// One token a row: the likeliest one, or a draw by Gumbel-max (arXiv:1411.0030) among those that top_k, top_p and min_p
// leave.
//
// Survivors of the filters are the first tokens of the ranking by value, lower ids first among equals. Nothing is
// sorted: the best score among all that top_k and min_p leave is found first. If top_p excludes its token, so it does
// every token ranked behind it, and the search goes on among those ahead.
//
// Which token wins must not depend on whose logarithm and exponential is used. A row where a rounding could decide is
// left undecided.
#include <limits>

#include "elements.h"
#include "philox.h"
#include "rows.h"
#include "scratch.h"

namespace pageport {

struct Sample {
    const void* logits;
    const float* temperatures;  // 0: the likeliest token
    const int64_t* top_k;       // `vocab`: off
    const float* top_p;         // 1: off
    const float* log_min_p;     // -infinity: off
    const int64_t* seeds;
    const int64_t* positions;
    int64_t* token_ids;
    float* peaks;        // the largest logit; NaN if there is one
    uint8_t* undecided;  // 1 where the caller has to choose
    int64_t rows, vocab;
    int64_t logits_stride;
    int64_t dtype;
    double score_margin;  // scores nearer than this are not told apart
    double mass_margin;   // nor relative differences of probability smaller than this
};

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr int64_t GROUP = PHILOX_WORDS;  // tokens looked at together
// 255 of 256 tokens have at most these random bits, which make noise just below `COMMON_NOISE`.
constexpr uint32_t COMMON_BITS = 0xff000000u;
constexpr double COMMON_NOISE = 5.55, LARGEST_NOISE = 22.95;

struct Peak {
    float value;
    int64_t id;
};

// Tokens that are still in: `value` and better, of equals those up to `last_id`.
struct Floor {
    float value;
    int64_t last_id;
};

struct Winner {
    int64_t id;
    double score, second;
};

// Scaled logits of one row, at most 0, padded with -infinity to whole groups of tokens.
struct Scaled {
    const float* values;
    const float* peaks;  // of each group, so that most are passed over at a glance
    int64_t vocab, padded;
    int64_t likeliest;

    bool is_in(int64_t id, Floor floor) const {
        return values[id] > floor.value || (values[id] == floor.value && id <= floor.last_id);
    }
};

template <class Element>
Peak find_peak(const Element* logits, int64_t vocab) {
    constexpr int64_t BLOCK = 256;
    float block[BLOCK];
    Peak peak{-INFINITE, 0};
    Floats is_odd = broadcast(0.0f);
    const Floats infinite = broadcast(INFINITE);
    for (int64_t start = 0; start < vocab; start += BLOCK) {
        const int64_t size = vocab - start < BLOCK ? vocab - start : BLOCK;
        Floats largest = broadcast(-INFINITE);
        each_vector(size, [&](int64_t i, auto load, auto store) {
            for (int lane = 0; lane < LANES && size - i < LANES; ++lane) block[i + lane] = -INFINITE;
            store(block + i, load(logits + start + i));
            const Floats values = pageport::load(block + i);
            largest = max(largest, values);
            is_odd = select(less(values, infinite), is_odd, infinite);
        });
        const float value = reduce_max(largest);
        if (value > peak.value) {
            int64_t i = 0;
            while (i + 1 < size && block[i] != value) ++i;
            peak = {value, start + i};
        }
    }
    if (reduce_max(is_odd) == 0.0f) return peak;
    // NaN, or infinity: no row that anything is drawn from.
    for (int64_t i = 0; i < vocab; ++i) {
        float value[LANES];
        store(value, load_first(logits + i, 1));
        if (value[0] != value[0]) return {value[0], i};
        if (value[0] > peak.value) peak = {value[0], i};
    }
    return peak;
}

int64_t count_at_least(const Scaled& row, float value) {
    const Floats limit = broadcast(value), zero = broadcast(0.0f), one = broadcast(1.0f);
    Floats counts = zero;
    for (int64_t start = 0; start < row.padded; start += GROUP) {
        if (row.peaks[start / GROUP] < value) continue;
        for (int64_t i = start; i < start + GROUP; i += LANES) {
            counts = counts + select(less(load(row.values + i), limit), zero, one);
        }
    }
    return static_cast<int64_t>(reduce_add(counts));
}

// The floor that leaves the first `count` tokens of the ranking, which are fewer than all.
Floor first_of_ranking(const Scaled& row, int64_t count) {
    const auto value_of = [](uint32_t bits) {
        float size;
        std::memcpy(&size, &bits, sizeof size);
        return -size;
    };
    // Bits of floats of one sign are ordered as their sizes are.
    uint32_t low = 0, high = 0x7f800000u;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int64_t found = count_at_least(row, value_of(middle));
        if (found == count) return {value_of(middle), row.vocab - 1};
        if (found > count) high = middle;
        else low = middle + 1;
    }
    const float value = value_of(low);
    int64_t missing = count - (low == 0 ? 0 : count_at_least(row, value_of(low - 1)));
    for (int64_t id = 0; id < row.vocab; ++id) {
        if (row.values[id] == value && --missing == 0) return {value, id};
    }
    return {value, row.vocab - 1};
}

// The sum of e^value over the tokens that are in.
double mass(const Scaled& row, Floor floor) {
    float lanes[LANES];
    for (int i = 0; i < LANES; ++i) lanes[i] = static_cast<float>(i);
    const Floats lane = load(lanes), zero = broadcast(0.0f), value = broadcast(floor.value);
    const Floats last_id = broadcast(static_cast<float>(floor.last_id));
    double sums[LANES] = {};
    for (int64_t start = 0; start < row.padded; start += GROUP) {
        if (row.peaks[start / GROUP] < floor.value) continue;
        for (int64_t i = start; i < start + GROUP; i += LANES) {
            const Floats x = load(row.values + i), share = exp(x);
            // Ids are whole numbers below 2^24, which float32 holds.
            const Floats id = lane + broadcast(static_cast<float>(i));
            const Floats tied = select(less(last_id, id), zero, share);
            store(lanes, select(less(value, x), share, select(less(x, value), zero, tied)));
            for (int k = 0; k < LANES; ++k) sums[k] += static_cast<double>(lanes[k]);
        }
    }
    double sum = 0;
    for (const double part : sums) sum += part;
    return sum;
}

double gumbel(uint32_t bits) { return -std::log(-std::log((static_cast<double>(bits) + 0.5) * 0x1p-32)); }

// Could any of a group beat `score`, or come near it?
bool may_win(const float* values, const uint32_t* bits, double score) {
    const float common = static_cast<float>(score - COMMON_NOISE), rare = static_cast<float>(score - LARGEST_NOISE);
    uint32_t found = 0;
    for (int64_t i = 0; i < GROUP; ++i) found |= (values[i] >= (bits[i] > COMMON_BITS ? rare : common)) ? 1u : 0u;
    return found != 0;
}

Winner find_winner(const Scaled& row, Floor floor, PhiloxRow random) {
    uint32_t bits[GROUP];
    const int64_t likeliest_group = row.likeliest / GROUP * GROUP;
    philox(random, static_cast<uint32_t>(likeliest_group / 4), bits);
    // The likeliest token is always in.
    Winner winner{row.likeliest, gumbel(bits[row.likeliest - likeliest_group]), -static_cast<double>(INFINITE)};
    for (int64_t start = 0; start < row.padded; start += GROUP) {
        const float value = row.peaks[start / GROUP];
        if (value < floor.value || static_cast<double>(value) + LARGEST_NOISE < winner.score) continue;
        philox(random, static_cast<uint32_t>(start / 4), bits);
        if (!may_win(row.values + start, bits, winner.score)) continue;
        for (int64_t i = 0; i < GROUP && start + i < row.vocab; ++i) {
            const int64_t id = start + i;
            const double noiseless = static_cast<double>(row.values[id]);
            if (winner.score - noiseless > (bits[i] > COMMON_BITS ? LARGEST_NOISE : COMMON_NOISE)) continue;
            if (id == row.likeliest || !row.is_in(id, floor)) continue;
            const double score = gumbel(bits[i]) + noiseless;
            if (score > winner.score) winner = {id, score, winner.score};
            else if (score > winner.second) winner.second = score;
        }
    }
    return winner;
}

struct Draw {
    int64_t id;
    bool is_decided;
};

Draw draw(const Sample& a, const Scaled& row, int64_t index) {
    const int64_t top_k = a.top_k[index];
    const float log_min_p = a.log_min_p[index];
    const double top_p = static_cast<double>(a.top_p[index]);
    const uint64_t seed = static_cast<uint64_t>(a.seeds[index]);
    const PhiloxRow random{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                           static_cast<uint32_t>(a.positions[index])};
    const Floor everything{-INFINITE, row.vocab - 1};
    Floor floor = top_k < row.vocab ? first_of_ranking(row, top_k) : everything;
    if (log_min_p > floor.value) floor = {log_min_p, row.vocab - 1};
    const bool is_cut = top_k < row.vocab || log_min_p > -INFINITE;
    const double limit = top_p < 1 ? top_p * mass(row, is_cut ? floor : everything) : 0;
    for (;;) {
        const Winner winner = find_winner(row, floor, random);
        if (!(winner.score - winner.second > a.score_margin)) return {winner.id, false};
        if (top_p >= 1 || winner.id == row.likeliest) return {winner.id, true};
        const Floor ahead{row.values[winner.id], winner.id - 1};
        const double mass_ahead = mass(row, ahead);
        if (std::fabs(mass_ahead - limit) <= a.mass_margin * limit) return {winner.id, false};
        if (mass_ahead < limit) return {winner.id, true};
        floor = ahead;
    }
}

template <class Element>
void sample_row(const Sample& a, int64_t index) {
    const Element* logits = static_cast<const Element*>(a.logits) + index * a.logits_stride;
    const Peak peak = find_peak(logits, a.vocab);
    a.peaks[index] = peak.value;
    a.token_ids[index] = peak.id;
    a.undecided[index] = 0;
    const float temperature = a.temperatures[index];
    if (temperature == 0.0f || !(std::fabs(peak.value) < INFINITE)) return;
    static thread_local Scratch scratch;
    const int64_t padded = (a.vocab + GROUP - 1) / GROUP * GROUP;
    float* scaled = scratch.get<float>(static_cast<size_t>(padded + padded / GROUP));
    float* peaks = scaled + padded;
    for (int64_t i = a.vocab; i < padded; ++i) scaled[i] = -INFINITE;
    each_vector(a.vocab, [&](int64_t i, auto load, auto store) {
        store(scaled + i, (load(logits + i) - broadcast(peak.value)) / broadcast(temperature));
    });
    for (int64_t start = 0; start < padded; start += GROUP) {
        Floats largest = load(scaled + start);
        for (int64_t i = LANES; i < GROUP; i += LANES) largest = max(largest, load(scaled + start + i));
        peaks[start / GROUP] = reduce_max(largest);
    }
    const Draw drawn = draw(a, {scaled, peaks, a.vocab, padded, peak.id}, index);
    a.token_ids[index] = drawn.id;
    a.undecided[index] = !drawn.is_decided;
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(sample, pageport::Sample) {
    using namespace pageport;
    with_element(arguments.dtype, [&](auto element) {
        each_row(arguments.rows, arguments.vocab, [&](int64_t row) { sample_row<decltype(element)>(arguments, row); });
    });
}
