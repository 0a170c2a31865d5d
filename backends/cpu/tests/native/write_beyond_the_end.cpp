// Wrong on purpose: writes one element too many to its output, to see that the sanitizers see it.
#include "kernel.h"

namespace pageport {

struct WriteBeyondTheEnd {
    float* out;
    int64_t count;
};

}  // namespace pageport

PAGEPORT_KERNEL(write_beyond_the_end, pageport::WriteBeyondTheEnd) {
    for (int64_t i = 0; i <= arguments.count; ++i) arguments.out[i] = 1.0f;
}
