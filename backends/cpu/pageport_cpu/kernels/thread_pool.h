// A pool of threads that run the tasks of one loop together.
#pragma once

#include <cstdint>

namespace pageport {

using Task = void (*)(const void* context, int64_t index);

// Runs task(context, i) for each i below count; returns when all are done. Which thread runs which task is left open:
// results must not depend on it. A call while another caller uses the pool runs on the calling thread alone.
void run_tasks(int64_t count, Task task, const void* context);

// Threads that take part, the caller included.
int num_threads();

template <class Function>
inline void parallel_for(int64_t count, const Function& function) {
    if (count == 1) {
        function(int64_t{0});
        return;
    }
    run_tasks(count, [](const void* context, int64_t index) { (*static_cast<const Function*>(context))(index); }, &function);
}

// Like parallel_for over pieces [first, last) of `count` items: at most `pieces_per_thread` a thread, of at least
// `smallest` items, so that little work stays on the calling thread.
template <class Function>
inline void parallel_ranges(int64_t count, int64_t smallest, const Function& function, int64_t pieces_per_thread = 1) {
    const int64_t most = int64_t{num_threads()} * pieces_per_thread;
    int64_t pieces = smallest > 0 ? count / smallest : count;
    pieces = pieces < 1 ? 1 : pieces > most ? most : pieces;
    parallel_for(pieces, [&](int64_t i) { function(count * i / pieces, count * (i + 1) / pieces); });
}

}  // namespace pageport
