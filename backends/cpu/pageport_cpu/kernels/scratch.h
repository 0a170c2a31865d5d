// Memory that kernels compute in: grown when needed, kept for the next call, one set a calling thread.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace pageport {

// 64-byte aligned; what it held is lost when it grows.
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    template <class T>
    T* get(size_t count) {
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        if (bytes > bytes_) {
            std::free(memory_);
            bytes_ = 0;
            memory_ = std::aligned_alloc(64, bytes);
            if (memory_ == nullptr) throw std::bad_alloc();
            bytes_ = bytes;
        }
        return static_cast<T*>(memory_);
    }

private:
    void* memory_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace pageport
