// What every kernel file shares: its C interface.
//
// A kernel takes one struct of pointers, int64_t and double, 8 bytes a field, so that Python's mirror of it has no
// padding to get wrong. Callers have checked shapes and dtypes: a kernel never fails. Strides count elements.
#pragma once

#include <cstdint>

// Nothing else leaves the library, so that two of them in one process do not mix their threads and buffers.
#define PAGEPORT_EXPORT __attribute__((visibility("default")))

// Defines `pageport_<name>(const Arguments&)` and, so that the loader can compare it with its mirror, the struct's size.
#define PAGEPORT_KERNEL(name, Arguments)                                                      \
    extern "C" PAGEPORT_EXPORT const int64_t pageport_##name##_size = int64_t{sizeof(Arguments)}; \
    extern "C" PAGEPORT_EXPORT void pageport_##name(const Arguments& arguments)

namespace pageport {

// The dtype of a tensor of activations, or of stored keys and values.
enum Dtype : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, FP8_E4M3 = 3, FP8_E5M2 = 4, INT8 = 5 };

// Bytes that come from memory together.
constexpr int64_t CACHE_LINE = 64;

}  // namespace pageport
