// Exercises the thread pool from several callers: every task exactly once, sizes that change, a child process.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "thread_pool.h"

struct SetNumThreads {
    int64_t count;
};
extern "C" void pageport_set_num_threads(const SetNumThreads&);

static void check_loop(int64_t count) {
    std::vector<int> times(count);
    int64_t sum = 0;
    pageport::parallel_for(count, [&](int64_t i) { times[i] += 1; });
    for (int64_t i = 0; i < count; ++i) sum += times[i] == 1;
    if (sum != count) {
        std::printf("a loop of %ld ran %ld tasks once\n", static_cast<long>(count), static_cast<long>(sum));
        std::abort();
    }
}

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
    pageport_set_num_threads({3});
    std::atomic<bool> over{false};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 2; ++caller)
        callers.emplace_back([&, caller] {
            for (int round = 0; round < rounds; ++round)
                for (int64_t count = 0; count < 40; ++count) check_loop(count + caller);
            if (caller == 0) over = true;
        });
    for (int64_t size = 1; !over; size = size % 4 + 1) {
        pageport_set_num_threads({size});
        usleep(2000);
    }
    for (auto& caller : callers) caller.join();
    pageport_set_num_threads({2});
    check_loop(100);
    const pid_t child = fork();
    if (child == 0) {
        check_loop(100);
        _exit(pageport::num_threads() == 2 ? 0 : 1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    check_loop(100);
    pageport_set_num_threads({1});
    return status;
}
