// Says how many threads the pool has, for its tests.
#include "kernel.h"
#include "thread_pool.h"

namespace pageport {

struct NumThreads {
    int64_t* count;
};

}  // namespace pageport

PAGEPORT_KERNEL(num_threads, pageport::NumThreads) { *arguments.count = pageport::num_threads(); }
