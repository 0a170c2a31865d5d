// Weights as `linear_int8` reads them: panels of 16 outputs, each a sequence of records of 32 or 256 inputs.
//
// A record holds scales (and minima) of its 16 outputs, then the integers, unsigned, in planes of bits. The order of a
// plane is that of `Quad`: byte 4 · output + i belongs to input 4 · quad + i. Values are those of GGML's blocks
// (llama.cpp: ggml/src/ggml-common.h), to the bit, and take as much memory, or up to 3 % more.
#pragma once

#include "integer_sums.h"

namespace pageport {

// Inputs that share a scale of activations; the integers of one group make eight quads.
constexpr int GROUP = 32;
constexpr int QUADS = GROUP / 4;

enum PanelFormat : int64_t { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, CHANNEL_INT8 };

inline void copy_half(void* to, const void* from) { std::memcpy(to, from, 2); }
inline float read_half(const uint8_t* p) {
    uint16_t values[LANES] = {};
    std::memcpy(values, p, 2);
    float result[LANES];
    store(result, load_float16(values));
    return result[0];
}
inline float read_float(const uint8_t* p) {
    float f;
    std::memcpy(&f, p, sizeof f);
    return f;
}

// 32 integers of BITS bits for each of 16 outputs.
template <int BITS>
struct Planes {
    static constexpr int BYTES = BITS * GROUP * OUTPUTS / 8;

    static void put(uint8_t* planes, int output, const uint8_t* integers) {
        for (int i = 0; i < 4; ++i) {
            uint8_t* column = planes + output * 4 + i;
            const uint8_t* q = integers + i;
            if constexpr (BITS == 8) {
                for (int quad = 0; quad < QUADS; ++quad) column[quad * QUAD_BYTES] = q[4 * quad];
                continue;
            }
            for (int quad = 0; quad < 4; ++quad)
                column[quad * QUAD_BYTES] = static_cast<uint8_t>((q[4 * quad] & 15) | q[4 * quad + 16] << 4);
            if constexpr (BITS == 5) {
                int bits = 0;
                for (int quad = 0; quad < QUADS; ++quad) bits |= q[4 * quad] >> 4 << quad;
                column[4 * QUAD_BYTES] = static_cast<uint8_t>(bits);
            }
            if constexpr (BITS == 6) {
                int bits = 0;
                for (int quad = 0; quad < QUADS; ++quad) bits |= q[4 * quad] >> 4 << 2 * quad;
                column[4 * QUAD_BYTES] = static_cast<uint8_t>(bits);
                column[5 * QUAD_BYTES] = static_cast<uint8_t>(bits >> 8);
            }
        }
    }

    static void get(const uint8_t* planes, int output, uint8_t* integers) {
        Quad quads[QUADS];
        load(planes, quads);
        for (int quad = 0; quad < QUADS; ++quad) {
            uint8_t bytes[QUAD_BYTES];
            store_quad(bytes, quads[quad]);
            std::memcpy(integers + 4 * quad, bytes + 4 * output, 4);
        }
    }

    static void load(const uint8_t* planes, Quad* quads) {
        if constexpr (BITS == 8) {
#pragma GCC unroll 8
            for (int quad = 0; quad < QUADS; ++quad) quads[quad] = load_quad(planes + quad * QUAD_BYTES);
            return;
        }
#pragma GCC unroll 4
        for (int quad = 0; quad < 4; ++quad) {
            const Quad both = load_quad(planes + quad * QUAD_BYTES);
            quads[quad] = both & 15;
            quads[quad + 4] = shift_left<-4>(both) & 15;
        }
        if constexpr (BITS == 5) {
            const Quad high = load_quad(planes + 4 * QUAD_BYTES);
            quads[0] = quads[0] | (shift_left<4>(high) & 16);
            quads[1] = quads[1] | (shift_left<3>(high) & 16);
            quads[2] = quads[2] | (shift_left<2>(high) & 16);
            quads[3] = quads[3] | (shift_left<1>(high) & 16);
            quads[4] = quads[4] | (high & 16);
            quads[5] = quads[5] | (shift_left<-1>(high) & 16);
            quads[6] = quads[6] | (shift_left<-2>(high) & 16);
            quads[7] = quads[7] | (shift_left<-3>(high) & 16);
        }
        if constexpr (BITS == 6) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const Quad high = load_quad(planes + (4 + half) * QUAD_BYTES);
                quads[4 * half] = quads[4 * half] | (shift_left<4>(high) & 48);
                quads[4 * half + 1] = quads[4 * half + 1] | (shift_left<2>(high) & 48);
                quads[4 * half + 2] = quads[4 * half + 2] | (high & 48);
                quads[4 * half + 3] = quads[4 * half + 3] | (shift_left<-2>(high) & 48);
            }
        }
    }
};

// What formats have in common, for `linear_int8`: a group has SPLITS scales, and its weights are
// scale · (integer - OFFSET) + minimum.
template <int BITS_, int OFFSET_, bool HAS_MINIMUM_, int GROUPS_, int SPLITS_ = 1>
struct Format {
    using Integers = Planes<BITS_>;
    static constexpr int BITS = BITS_;
    static constexpr int OFFSET = OFFSET_;
    static constexpr bool HAS_MINIMUM = HAS_MINIMUM_;
    static constexpr int GROUPS = GROUPS_;  // in a record
    static constexpr int SPLITS = SPLITS_;
};

// One float16 scale, and perhaps a minimum, for 32 weights.
template <int BITS, int OFFSET, bool HAS_MINIMUM>
struct PlainFormat : Format<BITS, OFFSET, HAS_MINIMUM, 1> {
    using Integers = Planes<BITS>;
    static constexpr int HEADER_BYTES = (HAS_MINIMUM ? 4 : 2) * OUTPUTS;
    static constexpr int RECORD_BYTES = HEADER_BYTES + Integers::BYTES;
    // llama.cpp's block: scale, minimum, the fifth bits, and the rest.
    static constexpr int HIGH_BYTE = HAS_MINIMUM ? 4 : 2;
    static constexpr int LOW_BYTE = HIGH_BYTE + (BITS == 5 ? 4 : 0);
    static constexpr int BLOCK_BYTES = LOW_BYTE + (BITS == 8 ? GROUP : GROUP / 2);

    static const uint8_t* planes(const uint8_t* record, int) { return record + HEADER_BYTES; }
    static Outputs scale(const uint8_t* record, int, int) { return load_outputs_float16(record); }
    static Outputs minimum(const uint8_t* record, int) { return load_outputs_float16(record + 2 * OUTPUTS); }

    static void pack(const uint8_t* block, uint8_t* record, int output) {
        uint8_t integers[GROUP];
        for (int i = 0; i < GROUP; ++i) {
            if constexpr (BITS == 8) {
                integers[i] = static_cast<uint8_t>(block[LOW_BYTE + i] ^ 0x80);
            } else {
                const int high = BITS == 5 ? block[HIGH_BYTE + i / 8] >> i % 8 & 1 : 0;
                const uint8_t low = block[LOW_BYTE + i % 16];
                integers[i] = static_cast<uint8_t>((i < 16 ? low & 15 : low >> 4) | high << 4);
            }
        }
        put(record, output, block, block + 2, integers);
    }

    static void put(uint8_t* record, int output, const void* scale, const void* minimum, const uint8_t* integers) {
        copy_half(record + 2 * output, scale);
        if (HAS_MINIMUM) copy_half(record + 2 * (OUTPUTS + output), minimum);
        Integers::put(record + HEADER_BYTES, output, integers);
    }

    static void dequantise(const uint8_t* record, int output, float* weights) {
        const float scale = read_half(record + 2 * output);
        const float minimum = HAS_MINIMUM ? read_half(record + 2 * (OUTPUTS + output)) : 0.0f;
        uint8_t integers[GROUP];
        Integers::get(record + HEADER_BYTES, output, integers);
        for (int i = 0; i < GROUP; ++i) {
            const float product = scale * static_cast<float>(integers[i] - OFFSET);
            weights[i] = HAS_MINIMUM ? product + minimum : product;
        }
    }
};

// 256 weights with a float16 scale of the 6-bit scales of eight groups, and the same for the minima.
template <int BITS>
struct SuperFormat : Format<BITS, 0, true, 8> {
    using Integers = Planes<BITS>;
    static constexpr int SUB_SCALES = 4 * OUTPUTS;
    static constexpr int HEADER_BYTES = SUB_SCALES + 8 * 2 * OUTPUTS;
    static constexpr int RECORD_BYTES = HEADER_BYTES + 8 * Integers::BYTES;
    static constexpr int HIGH_BYTE = 16;
    static constexpr int LOW_BYTE = BITS == 5 ? 48 : 16;
    static constexpr int BLOCK_BYTES = LOW_BYTE + 128;

    static const uint8_t* planes(const uint8_t* record, int group) {
        return record + HEADER_BYTES + group * Integers::BYTES;
    }
    static Outputs scale(const uint8_t* record, int group, int) {
        return load_outputs_float16(record) * load_outputs_uint8(record + SUB_SCALES + group * 2 * OUTPUTS);
    }
    static Outputs minimum(const uint8_t* record, int group) {
        const uint8_t* sub_minima = record + SUB_SCALES + (group * 2 + 1) * OUTPUTS;
        return load_outputs_float16(record + 2 * OUTPUTS) * load_outputs_uint8(sub_minima);
    }

    static void pack(const uint8_t* block, uint8_t* record, int output) {
        copy_half(record + 2 * output, block);
        // Stored so that scale · q + minimum is the weight: llama.cpp subtracts.
        const uint8_t negated[2] = {block[2], static_cast<uint8_t>(block[3] ^ 0x80)};
        copy_half(record + 2 * (OUTPUTS + output), negated);
        for (int group = 0; group < 8; ++group) {
            const uint8_t* packed = block + 4;
            uint8_t* sub_scales = record + SUB_SCALES + group * 2 * OUTPUTS + output;
            const int i = group & 3;
            const int scale = group < 4 ? packed[i] & 63 : (packed[8 + i] & 15) | packed[i] >> 6 << 4;
            const int minimum = group < 4 ? packed[4 + i] & 63 : packed[8 + i] >> 4 | packed[4 + i] >> 6 << 4;
            sub_scales[0] = static_cast<uint8_t>(scale);
            sub_scales[OUTPUTS] = static_cast<uint8_t>(minimum);
            uint8_t integers[GROUP];
            for (int k = 0; k < GROUP; ++k) {
                const uint8_t both = block[LOW_BYTE + group / 2 * 32 + k];
                const int high = BITS == 5 ? block[HIGH_BYTE + k] >> group & 1 : 0;
                integers[k] = static_cast<uint8_t>((group & 1 ? both >> 4 : both & 15) | high << 4);
            }
            Integers::put(record + HEADER_BYTES + group * Integers::BYTES, output, integers);
        }
    }

    static void dequantise(const uint8_t* record, int output, float* weights) {
        for (int group = 0; group < 8; ++group) {
            const uint8_t* sub_scales = record + SUB_SCALES + group * 2 * OUTPUTS + output;
            const float scale = read_half(record + 2 * output) * static_cast<float>(sub_scales[0]);
            const float minimum = read_half(record + 2 * (OUTPUTS + output)) * static_cast<float>(sub_scales[OUTPUTS]);
            uint8_t integers[GROUP];
            Integers::get(planes(record, group), output, integers);
            for (int i = 0; i < GROUP; ++i) weights[group * GROUP + i] = scale * static_cast<float>(integers[i]) + minimum;
        }
    }
};

// 256 weights with a float16 scale of the 8-bit scales of sixteen runs of 16.
struct FormatQ6K : Format<6, 32, false, 8, 2> {
    static constexpr int SUB_SCALES = 2 * OUTPUTS;
    static constexpr int HEADER_BYTES = SUB_SCALES + 16 * OUTPUTS;
    static constexpr int RECORD_BYTES = HEADER_BYTES + 8 * Integers::BYTES;
    static constexpr int HIGH_BYTE = 128;
    static constexpr int SCALE_BYTE = 192;
    static constexpr int BLOCK_BYTES = 210;

    static const uint8_t* planes(const uint8_t* record, int group) {
        return record + HEADER_BYTES + group * Integers::BYTES;
    }
    static Outputs scale(const uint8_t* record, int group, int split) {
        return load_outputs_float16(record) * load_outputs_int8(record + SUB_SCALES + (group * 2 + split) * OUTPUTS);
    }
    static Outputs minimum(const uint8_t*, int) { return zero_outputs(); }

    static void pack(const uint8_t* block, uint8_t* record, int output) {
        copy_half(record + 2 * output, block + BLOCK_BYTES - 2);
        for (int run = 0; run < 16; ++run) record[SUB_SCALES + run * OUTPUTS + output] = block[SCALE_BYTE + run];
        for (int group = 0; group < 8; ++group) {
            const int half = group / 4, quarter = group % 4;
            uint8_t integers[GROUP];
            for (int k = 0; k < GROUP; ++k) {
                const uint8_t both = block[half * 64 + quarter % 2 * 32 + k];
                const int high = block[HIGH_BYTE + half * 32 + k] >> 2 * quarter & 3;
                integers[k] = static_cast<uint8_t>((quarter < 2 ? both & 15 : both >> 4) | high << 4);
            }
            Integers::put(record + HEADER_BYTES + group * Integers::BYTES, output, integers);
        }
    }

    static void dequantise(const uint8_t* record, int output, float* weights) {
        for (int group = 0; group < 8; ++group) {
            uint8_t integers[GROUP];
            Integers::get(planes(record, group), output, integers);
            for (int i = 0; i < GROUP; ++i) {
                const auto sub_scale = static_cast<int8_t>(record[SUB_SCALES + (group * 2 + i / 16) * OUTPUTS + output]);
                const float scale = read_half(record + 2 * output) * static_cast<float>(sub_scale);
                weights[group * GROUP + i] = scale * static_cast<float>(integers[i] - OFFSET);
            }
        }
    }
};

// One float32 scale an output, in front of the panel.
struct FormatInt8 : Format<8, 128, false, 1> {
    static constexpr int RECORD_BYTES = Integers::BYTES;
    static constexpr int PANEL_HEADER_BYTES = 4 * OUTPUTS;

    static void dequantise(const uint8_t* record, int output, float scale, float* weights) {
        uint8_t integers[GROUP];
        Integers::get(record, output, integers);
        for (int i = 0; i < GROUP; ++i) weights[i] = scale * static_cast<float>(integers[i] - OFFSET);
    }
};

// Calls `function` with the format of GGML's blocks that `format` names.
template <class Function>
inline void with_block_format(int64_t format, Function function) {
    switch (format) {
        case Q4_0: return function(PlainFormat<4, 8, false>{});
        case Q4_1: return function(PlainFormat<4, 0, true>{});
        case Q5_0: return function(PlainFormat<5, 16, false>{});
        case Q5_1: return function(PlainFormat<5, 0, true>{});
        case Q8_0: return function(PlainFormat<8, 128, false>{});
        case Q4_K: return function(SuperFormat<4>{});
        case Q5_K: return function(SuperFormat<5>{});
        case Q6_K: return function(FormatQ6K{});
    }
}

}  // namespace pageport
