// Loops over rows that do not depend on each other.
#pragma once

#include "thread_pool.h"

namespace pageport {

// Elements that are worth a second thread.
constexpr int64_t ELEMENTS_PER_PIECE = 16384;

// Calls function(row) for each row; threads share them where there is enough to do.
template <class Function>
inline void each_row(int64_t rows, int64_t features, const Function& function) {
    parallel_ranges(rows, 1 + ELEMENTS_PER_PIECE / (features < 1 ? 1 : features), [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) function(row);
    });
}

}  // namespace pageport
