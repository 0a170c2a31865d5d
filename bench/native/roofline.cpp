// Loops that do nothing but one thing, for the peaks of a machine: multiply-adds that stay in registers, and reads.
//
// The instruction set is what the compiler was told (see roofline.py). Every loop runs on one pinned thread a core;
// the caller takes the best of several loops, since no single one is the fastest on every core.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = std::size_t{512} << 20;

// A loop does `rounds` rounds on part `part` of `parts` and returns the operations or bytes that it did.
using Loop = double (*)(std::int64_t rounds, int part, int parts);

struct NamedLoop {
    const char* name;
    Loop run;
};

// Results go here, so that no loop is dead code; operands come from here, so that none is a constant. Accumulators start
// with different values, so that the compiler cannot take one for another.
volatile float float_sink, float_factor = 0.999f, float_term = 0.001f;
volatile std::int32_t integer_sink, integer_factor = 3;

// Not inlined into the loops that hold accumulators in every register.
template <typename Vector>
__attribute__((noinline)) void sink(const Vector* values, int count) {
    std::uint64_t mix = 0;
    for (int i = 0; i < count; ++i) {
        std::uint64_t word;
        std::memcpy(&word, values + i, sizeof word);
        mix ^= word;
    }
    integer_sink = static_cast<std::int32_t>(mix);
}

template <typename Element, int kBytes>
struct VectorOf {
    typedef Element Type __attribute__((vector_size(kBytes)));
};

// accumulator = accumulator * factor + term: one fused instruction where the set has it.
template <typename Element, int kBytes, int kAccumulators>
double multiply_add(std::int64_t rounds, int, int) {
    using Vector = typename VectorOf<Element, kBytes>::Type;
    const Vector factor = Vector{} + static_cast<Element>(float_factor);
    const Vector term = Vector{} + static_cast<Element>(float_term);
    Vector accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = Vector{} + static_cast<Element>(i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) accumulator[i] = accumulator[i] * factor + term;
    }
    sink(accumulator, kAccumulators);
    return 2.0 * static_cast<double>(kBytes / sizeof(Element)) * kAccumulators * static_cast<double>(rounds);
}

#if defined(__AVX2__)

// The compiler may not know that an operand stays the same: it would take the product out of the loop.
#define OPAQUE(operand) asm volatile("" : "+x"(operand))

template <int kAccumulators>
double pairs_256(std::int64_t rounds, int, int) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i left = _mm256_set1_epi8(static_cast<char>(integer_factor)), right = left;
    __m256i accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = _mm256_set1_epi32(integer_sink + i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) {
            OPAQUE(left);
            const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(left, right), ones);
            accumulator[i] = _mm256_add_epi32(accumulator[i], products);
        }
    }
    sink(accumulator, kAccumulators);
    return 64.0 * kAccumulators * static_cast<double>(rounds);
}

// As kernels do that keep sums of products in 16 bits for a while.
template <int kAccumulators>
double pairs_16_bit_sums_256(std::int64_t rounds, int, int) {
    __m256i left = _mm256_set1_epi8(static_cast<char>(integer_factor)), right = left;
    __m256i accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = _mm256_set1_epi32(integer_sink + i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) {
            OPAQUE(left);
            accumulator[i] = _mm256_add_epi16(accumulator[i], _mm256_maddubs_epi16(left, right));
        }
    }
    sink(accumulator, kAccumulators);
    return 64.0 * kAccumulators * static_cast<double>(rounds);
}

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
template <int kAccumulators>
double dot_256(std::int64_t rounds, int, int) {
    __m256i left = _mm256_set1_epi8(static_cast<char>(integer_factor)), right = left;
    __m256i accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = _mm256_set1_epi32(integer_sink + i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
            accumulator[i] = _mm256_dpbusd_epi32(accumulator[i], left, right);
#else
            accumulator[i] = _mm256_dpbusd_avx_epi32(accumulator[i], left, right);
#endif
        }
    }
    sink(accumulator, kAccumulators);
    return 64.0 * kAccumulators * static_cast<double>(rounds);
}
#define HAS_DOT_256 1
#endif

#if defined(__AVX512VNNI__)
template <int kAccumulators>
double dot_512(std::int64_t rounds, int, int) {
    const __m512i left = _mm512_set1_epi32(integer_factor), right = left;
    __m512i accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = _mm512_set1_epi32(integer_sink + i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) accumulator[i] = _mm512_dpbusd_epi32(accumulator[i], left, right);
    }
    sink(accumulator, kAccumulators);
    return 128.0 * kAccumulators * static_cast<double>(rounds);
}
#endif

#endif  // __AVX2__

#if defined(__ARM_FEATURE_DOTPROD)
template <int kAccumulators>
double dot_128(std::int64_t rounds, int, int) {
    const int8x16_t left = vdupq_n_s8(static_cast<std::int8_t>(integer_factor)), right = left;
    int32x4_t accumulator[kAccumulators];
    for (int i = 0; i < kAccumulators; ++i) accumulator[i] = vdupq_n_s32(integer_sink + i);
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (int i = 0; i < kAccumulators; ++i) accumulator[i] = vdotq_s32(accumulator[i], left, right);
    }
    sink(accumulator, kAccumulators);
    return 32.0 * kAccumulators * static_cast<double>(rounds);
}
#endif

char* read_buffer = nullptr;

// Written once, so that every page is there before the first read.
void make_read_buffer() {
    if (read_buffer != nullptr) return;
    void* memory = nullptr;
    if (posix_memalign(&memory, std::size_t{2} << 20, kReadBytes) != 0) std::abort();
    read_buffer = static_cast<char*>(std::memset(memory, 1, kReadBytes));
}

// Each part reads its own share, as `kStreams` streams side by side.
template <int kBytes, int kStreams, int kPrefetchBytes>
double read_streams(std::int64_t rounds, int part, int parts) {
    using Vector = typename VectorOf<std::int64_t, kBytes>::Type;
    const std::size_t share = kReadBytes / static_cast<std::size_t>(parts);
    const std::size_t stream = share / kStreams / 256 * 256;
    const char* const start = read_buffer + share * static_cast<std::size_t>(part);
    Vector sum[4] = {};
    for (std::int64_t round = 0; round < rounds; ++round) {
        for (std::size_t offset = 0; offset < stream; offset += 256) {
            for (int s = 0; s < kStreams; ++s) {
                const char* const here = start + stream * static_cast<std::size_t>(s) + offset;
                const Vector* const values = reinterpret_cast<const Vector*>(here);
                if (kPrefetchBytes > 0) {
                    for (int line = 0; line < 256; line += 64) __builtin_prefetch(here + kPrefetchBytes + line);
                }
#pragma GCC unroll 16
                for (int i = 0; i < 256 / kBytes; ++i) sum[i % 4] += values[i];
            }
        }
    }
    sink(sum, 4);
    return static_cast<double>(stream) * kStreams * static_cast<double>(rounds);
}

const std::vector<NamedLoop>& loops_of(int kind) {
    static const std::vector<NamedLoop> float_loops = {
        {"128 bit, 8 accumulators", multiply_add<float, 16, 8>},
        {"128 bit, 12 accumulators", multiply_add<float, 16, 12>},
#if defined(__AVX2__)
        {"256 bit, 8 accumulators", multiply_add<float, 32, 8>},
        {"256 bit, 10 accumulators", multiply_add<float, 32, 10>},
        {"256 bit, 12 accumulators", multiply_add<float, 32, 12>},
#endif
#if defined(__AVX512F__)
        {"512 bit, 8 accumulators", multiply_add<float, 64, 8>},
        {"512 bit, 16 accumulators", multiply_add<float, 64, 16>},
        {"512 bit, 24 accumulators", multiply_add<float, 64, 24>},
#endif
    };
    static const std::vector<NamedLoop> integer_loops = {
        {"portable 32 bit products", multiply_add<std::int32_t, 16, 8>},
#if defined(__AVX2__)
        {"maddubs, madd and add, 256 bit, 8 accumulators", pairs_256<8>},
        {"maddubs, madd and add, 256 bit, 12 accumulators", pairs_256<12>},
        {"maddubs and 16 bit add, 256 bit, 8 accumulators", pairs_16_bit_sums_256<8>},
        {"maddubs and 16 bit add, 256 bit, 12 accumulators", pairs_16_bit_sums_256<12>},
#endif
#if defined(HAS_DOT_256)
        {"dpbusd, 256 bit, 8 accumulators", dot_256<8>},
        {"dpbusd, 256 bit, 12 accumulators", dot_256<12>},
#endif
#if defined(__AVX512VNNI__)
        {"dpbusd, 512 bit, 8 accumulators", dot_512<8>},
        {"dpbusd, 512 bit, 16 accumulators", dot_512<16>},
        {"dpbusd, 512 bit, 12 accumulators", dot_512<12>},
#endif
#if defined(__ARM_FEATURE_DOTPROD)
        {"sdot, 128 bit, 8 accumulators", dot_128<8>},
        {"sdot, 128 bit, 16 accumulators", dot_128<16>},
#endif
    };
    static const std::vector<NamedLoop> read_loops = {
#if defined(__AVX512F__)
        {"512 bit, 1 stream", read_streams<64, 1, 0>},
        {"512 bit, 4 streams", read_streams<64, 4, 0>},
        {"512 bit, 1 stream, prefetch 2 KiB ahead", read_streams<64, 1, 2048>},
        {"512 bit, 4 streams, prefetch 1 KiB ahead", read_streams<64, 4, 1024>},
#endif
#if defined(__AVX2__)
        {"256 bit, 1 stream", read_streams<32, 1, 0>},
        {"256 bit, 4 streams", read_streams<32, 4, 0>},
        {"256 bit, 1 stream, prefetch 2 KiB ahead", read_streams<32, 1, 2048>},
#endif
        {"128 bit, 1 stream", read_streams<16, 1, 0>},
        {"128 bit, 4 streams", read_streams<16, 4, 0>},
    };
    return kind == 0 ? float_loops : kind == 1 ? integer_loops : read_loops;
}

void pin_to_allowed_core(int index) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &allowed) && index-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
    }
#else
    (void)index;
#endif
}

// Operations or bytes a second of `threads` threads that start together, until the last has ended.
double rate(Loop loop, int threads, std::int64_t rounds) {
    std::atomic<int> waiting{threads};
    std::vector<double> done(static_cast<std::size_t>(threads));
    std::vector<Clock::time_point> start(static_cast<std::size_t>(threads)), end(start);
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i) {
        workers.emplace_back([&, i] {
            const auto slot = static_cast<std::size_t>(i);
            pin_to_allowed_core(i);
            waiting.fetch_sub(1);
            while (waiting.load() > 0) std::this_thread::yield();
            start[slot] = Clock::now();
            done[slot] = loop(rounds, i, threads);
            end[slot] = Clock::now();
        });
    }
    for (std::thread& worker : workers) worker.join();
    double total = 0.0;
    Clock::time_point first = start[0], last = end[0];
    for (std::size_t i = 0; i < workers.size(); ++i) {
        total += done[i];
        if (start[i] < first) first = start[i];
        if (end[i] > last) last = end[i];
    }
    return total / std::chrono::duration<double>(last - first).count();
}

}  // namespace

extern "C" {

// kind: 0 float32 multiply-adds, 1 int8 multiply-adds, 2 reads.
int roofline_num_loops(int kind) { return static_cast<int>(loops_of(kind).size()); }

const char* roofline_loop_name(int kind, int index) { return loops_of(kind)[static_cast<std::size_t>(index)].name; }

// Gives the memory of the reads back; the next reads make it again.
void roofline_release() {
    std::free(read_buffer);
    read_buffer = nullptr;
}

// Operations or bytes a second. `rounds` is how long: of a register loop its iterations, of reads the passes.
double roofline_measure(int kind, int index, int threads, std::int64_t rounds) {
    if (kind == 2) make_read_buffer();
    return rate(loops_of(kind)[static_cast<std::size_t>(index)].run, threads, rounds);
}
}
