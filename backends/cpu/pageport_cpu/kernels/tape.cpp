// A recorded step: kernels and their arguments, run one after the other without the host.
#include "kernel.h"

namespace pageport {

struct TapeEntry {
    void (*kernel)(const void* arguments);
    const void* arguments;
};

struct RunTape {
    const TapeEntry* entries;
    int64_t count;
};

}  // namespace pageport

PAGEPORT_KERNEL(run_tape, pageport::RunTape) {
    for (int64_t i = 0; i < arguments.count; ++i) arguments.entries[i].kernel(arguments.entries[i].arguments);
}
