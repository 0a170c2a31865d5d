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

// Like parallel_for over pieces [first, last) of `count` items, which go by whole tiles of `tile` items while there are
// enough for every thread: then all threads have the same work, and who was held up is helped out piece by piece.
template <class Function>
inline void parallel_tiles(int64_t count, int64_t tile, const Function& function) {
    constexpr int64_t MOST_TURNS = 12;
    const int64_t threads = num_threads(), tiles = count / (threads * tile);
    const int64_t size = tile * (tiles < MOST_TURNS ? 1 : tiles / MOST_TURNS);
    const int64_t whole = count / (threads * size) * threads, rest = count - whole * size;
    const int64_t parts = rest < threads ? rest : threads;
    parallel_for(whole + parts, [&](int64_t i) {
        if (i < whole) {
            function(i * size, (i + 1) * size);
        } else {
            function(whole * size + rest * (i - whole) / parts, whole * size + rest * (i - whole + 1) / parts);
        }
    });
}

}  // namespace pageport
