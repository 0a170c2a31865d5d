// Counts how often the thread pool runs each task of a loop, for its tests.
#include "kernel.h"
#include "thread_pool.h"

namespace pageport {

struct CountTasks {
    int64_t* times;
    int64_t* sum;  // where each task leaves what it computed
    int64_t count;
    int64_t loops;
    int64_t steps_per_task;
    int64_t missing;  // tasks that every second loop has fewer
};

}  // namespace pageport

PAGEPORT_KERNEL(count_tasks, pageport::CountTasks) {
    const auto& a = arguments;
    for (int64_t loop = 0; loop < a.loops; ++loop) {
        pageport::parallel_for(a.count - loop % 2 * a.missing, [&](int64_t i) {
            uint64_t value = static_cast<uint64_t>(i) + 1;
            for (int64_t step = 0; step < a.steps_per_task; ++step) value = value * 6364136223846793005u + 1442695040888963407u;
            a.sum[i] = static_cast<int64_t>(value);
            __atomic_fetch_add(a.times + i, 1, __ATOMIC_RELAXED);
        });
    }
}
