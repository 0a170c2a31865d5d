// Rows of float32 numbers become panels: int8 with one scale a row, or 4 bits with a scale and a minimum for 32.
#include "kernel.h"
#include "panels.h"
#include "quantised_rows.h"
#include "thread_pool.h"

namespace pageport {

struct QuantiseWeight {
    const float* weight;
    uint8_t* panels;
    int64_t weight_stride;
    int64_t rows, first_row;  // rows to pack, and where the first one goes
    int64_t in_features;
    int64_t format;
};

namespace {

constexpr int VECTORS = GROUP / LANES;

// 32 weights of a row; those beyond its end are zeros.
struct Group {
    Floats x[VECTORS];

    Group(const float* row, int64_t first, int64_t features) {
        float values[GROUP] = {};
        const int64_t left = features - first;
        std::memcpy(values, row + first, (left < GROUP ? left : GROUP) * sizeof(float));
        for (int i = 0; i < VECTORS; ++i) x[i] = load(values + i * LANES);
    }

    template <class Function>
    float sum(Function function) const {
        Floats total = broadcast(0.0f);
        for (int i = 0; i < VECTORS; ++i) total = total + function(i);
        return reduce_add(total);
    }
};

void pack_int8(const float* row, int64_t features, uint8_t* panel, int output) {
    float most = 0.0f;
    for (int64_t first = 0; first < features; first += GROUP) {
        const float group = largest(Group(row, first, features).x, VECTORS);
        most = group > most || group != group ? group : most;
        if (most != most) break;
    }
    const float scale = most * (1.0f / 127.0f);
    std::memcpy(panel + 4 * output, &scale, 4);
    const Floats inverse = broadcast(scale >= 0x1p-126f ? 1.0f / scale : 0.0f);
    uint8_t* record = panel + FormatInt8::PANEL_HEADER_BYTES;
    for (int64_t first = 0; first < features; first += GROUP, record += FormatInt8::RECORD_BYTES) {
        const Group group(row, first, features);
        uint8_t integers[GROUP];
        for (int i = 0; i < VECTORS; ++i) {
            // A row with NaN has a scale of NaN, whatever its integers.
            const Floats rounded = scale == scale ? group.x[i] * inverse : broadcast(0.0f);
            store_int8(reinterpret_cast<int8_t*>(integers) + i * LANES, rounded);
        }
        for (uint8_t& integer : integers) integer ^= 0x80;
        FormatInt8::Integers::put(record, output, integers);
    }
}

uint16_t to_half(float f) {
    uint16_t values[LANES];
    store_float16(values, broadcast(f));
    return values[0];
}

// Weights as scale · integer + minimum, the integers from 0 to 15.
struct Fit {
    uint16_t scale, minimum;  // float16
    Floats integers[VECTORS];
    float error;  // sum of squares

    // Rounds scale and minimum, then takes the nearest integers.
    Fit(const Group& group, float wanted_scale, float wanted_minimum)
        : scale(to_half(wanted_scale)), minimum(to_half(wanted_minimum)) {
        const float rounded_scale = read_half(reinterpret_cast<const uint8_t*>(&scale));
        const Floats step = broadcast(rounded_scale);
        const Floats base = broadcast(read_half(reinterpret_cast<const uint8_t*>(&minimum)));
        const Floats inverse = broadcast(rounded_scale == 0.0f ? 0.0f : 1.0f / rounded_scale);
        error = group.sum([&](int i) {
            integers[i] = min(max(round_even((group.x[i] - base) * inverse), broadcast(0.0f)), broadcast(15.0f));
            const Floats off = integers[i] * step + base - group.x[i];
            return off * off;
        });
    }
};

// The least squared error over several first guesses of the integers, each followed by a linear regression.
Fit fit_group(const Group& group) {
    Floats low = group.x[0], high = group.x[0];
    for (int i = 1; i < VECTORS; ++i) {
        low = min(low, group.x[i]);
        high = max(high, group.x[i]);
    }
    const float lowest = -reduce_max(broadcast(0.0f) - low), highest = reduce_max(high);
    const float range = highest - lowest;
    Fit best(group, range * (1.0f / 15.0f), lowest);
    if (!(range > 0.0f) || !(range < 65504.0f)) return best;
    const float sum_x = group.sum([&](int i) { return group.x[i]; });
    for (int guess = 0; guess <= 5; ++guess) {
        const Floats steps = broadcast((14.0f + 0.4f * static_cast<float>(guess)) / range);
        Floats q[VECTORS];
        for (int i = 0; i < VECTORS; ++i)
            q[i] = min(round_even((group.x[i] - broadcast(lowest)) * steps), broadcast(15.0f));
        const float sum_q = group.sum([&](int i) { return q[i]; });
        const float sum_qq = group.sum([&](int i) { return q[i] * q[i]; });
        const float sum_qx = group.sum([&](int i) { return q[i] * group.x[i]; });
        const float spread = GROUP * sum_qq - sum_q * sum_q;
        if (!(spread > 0.0f)) continue;
        const float scale = (GROUP * sum_qx - sum_q * sum_x) / spread;
        const Fit fit(group, scale, (sum_x - scale * sum_q) / GROUP);
        if (fit.error < best.error) best = fit;
    }
    return best;
}

void pack_int4(const float* row, int64_t features, uint8_t* panel, int output) {
    using Format = PlainFormat<4, 0, true>;
    uint8_t* record = panel;
    for (int64_t first = 0; first < features; first += GROUP, record += Format::RECORD_BYTES) {
        const Group group(row, first, features);
        uint8_t integers[GROUP] = {};
        const float most = largest(group.x, VECTORS);
        if (most != most) {
            const uint16_t nan = to_half(most);
            Format::put(record, output, &nan, &nan, integers);
            continue;
        }
        const Fit fit = fit_group(group);
        for (int i = 0; i < VECTORS; ++i) store_int8(reinterpret_cast<int8_t*>(integers) + i * LANES, fit.integers[i]);
        Format::put(record, output, &fit.scale, &fit.minimum, integers);
    }
}

}  // namespace
}  // namespace pageport

PAGEPORT_KERNEL(quantise_weight, pageport::QuantiseWeight) {
    using namespace pageport;
    const QuantiseWeight& a = arguments;
    const bool is_int8 = a.format == CHANNEL_INT8;
    const int64_t groups = (a.in_features + GROUP - 1) / GROUP;
    const int64_t panel_bytes = is_int8 ? FormatInt8::PANEL_HEADER_BYTES + groups * FormatInt8::RECORD_BYTES
                                        : groups * PlainFormat<4, 0, true>::RECORD_BYTES;
    const int64_t first_panel = a.first_row / OUTPUTS, end_row = a.first_row + a.rows;
    const int64_t panels = (end_row + OUTPUTS - 1) / OUTPUTS - first_panel;
    parallel_ranges(panels, 1, [&](int64_t first, int64_t last) {
        for (int64_t panel = first_panel + first; panel < first_panel + last; ++panel) {
            for (int output = 0; output < OUTPUTS; ++output) {
                const int64_t row = panel * OUTPUTS + output - a.first_row;
                if (row < 0 || row >= a.rows) continue;
                const float* weight = a.weight + row * a.weight_stride;
                (is_int8 ? pack_int8 : pack_int4)(weight, a.in_features, a.panels + panel * panel_bytes, output);
            }
        }
    }, 4);
}
