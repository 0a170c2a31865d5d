#include "thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pageport {
namespace {

using Clock = std::chrono::steady_clock;

// A worker looks this long for the next loop before it sleeps: longer than the host takes between the kernels of a
// step, too short to disturb anybody when there is nothing to do.
constexpr std::chrono::microseconds SPIN_TIME{50};
// What one look at the clock may cost is spread over this many looks at the work.
constexpr int SPINS_PER_CLOCK = 16;
// The caller waits this many spins for the last task before it offers its processor to whoever runs that.
constexpr int SPINS_BEFORE_YIELD = 500;
// What fits in half a word.
constexpr int64_t MOST_TASKS = 0xffffffff;

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class ThreadPool {
public:
    int size() const { return size_.load(std::memory_order_relaxed); }

    void run(int64_t count, Task task, const void* context) {
        if (count <= 1 || count > MOST_TASKS || size() == 1 || busy_.exchange(true, std::memory_order_acquire)) {
            for (int64_t i = 0; i < count; ++i) task(context, i);
            return;
        }
        // No task of the last loop is unclaimed or running, so nobody reads these now.
        count_ = count;
        task_ = task;
        context_ = context;
        num_done_.store(0, std::memory_order_relaxed);
        const uint64_t loop = (work_.load(std::memory_order_relaxed) >> 32) + 1;
        // Sequentially consistent with `num_sleeping_`: either this sees a sleeper, or the sleeper sees the new loop.
        work_.store(loop << 32 | static_cast<uint64_t>(count), std::memory_order_seq_cst);
        if (num_sleeping_.load(std::memory_order_seq_cst) > 0) wake();
        take_tasks();
        for (int spins = 0; num_done_.load(std::memory_order_acquire) < count; ++spins) {
            if (spins < SPINS_BEFORE_YIELD) pause();
            else std::this_thread::yield();
        }
        busy_.store(false, std::memory_order_release);
    }

    // Waits for the loop that runs. Where the system grants fewer threads, the pool has fewer.
    void resize(int size) {
        while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
        stopping_.store(true, std::memory_order_seq_cst);
        wake();
        for (auto& worker : workers_) worker.join();
        workers_.clear();
        stopping_.store(false, std::memory_order_seq_cst);
        try {
            while (static_cast<int>(workers_.size()) + 1 < size) workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
        }
        size_.store(static_cast<int>(workers_.size()) + 1, std::memory_order_relaxed);
        busy_.store(false, std::memory_order_release);
    }

private:
    // Claims tasks until none is left. Whoever holds a claim keeps its loop from ending, so what describes the loop is
    // read after the claim and cannot change under it; a thread that comes late to a loop finds nothing to claim, or
    // claims tasks of the next one, which is as good.
    void take_tasks() noexcept {
        int64_t num_done = 0;
        uint64_t seen = work_.load(std::memory_order_relaxed);
        while (num_unclaimed(seen) > 0) {
            if (!work_.compare_exchange_weak(seen, seen - 1, std::memory_order_acquire, std::memory_order_relaxed)) continue;
            task_(context_, count_ - num_unclaimed(seen));
            ++num_done;
            seen = work_.load(std::memory_order_relaxed);
        }
        if (num_done > 0) num_done_.fetch_add(num_done, std::memory_order_release);
    }

    static int64_t num_unclaimed(uint64_t work) { return static_cast<int64_t>(work & MOST_TASKS); }

    void work() {
        uint64_t seen = work_.load(std::memory_order_acquire) >> 32;
        while (!stopping_.load(std::memory_order_relaxed)) {
            if (!spin_until_new(seen)) sleep_until_new(seen);
            seen = work_.load(std::memory_order_acquire) >> 32;
            take_tasks();
        }
    }

    bool is_new(uint64_t seen, std::memory_order order) const {
        return work_.load(order) >> 32 != seen || stopping_.load(order);
    }

    bool spin_until_new(uint64_t seen) const {
        const auto end = Clock::now() + SPIN_TIME;
        do {
            for (int i = 0; i < SPINS_PER_CLOCK; ++i) {
                if (is_new(seen, std::memory_order_relaxed)) return true;
                pause();
            }
        } while (Clock::now() < end);
        return false;
    }

    void sleep_until_new(uint64_t seen) {
        std::unique_lock<std::mutex> lock(sleep_mutex_);
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        sleepers_.wait(lock, [&] { return is_new(seen, std::memory_order_seq_cst); });
        num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
    }

    void wake() {
        // Whoever has looked for work in vain holds the mutex until it sleeps.
        { std::lock_guard<std::mutex> lock(sleep_mutex_); }
        sleepers_.notify_all();
    }

    std::atomic<bool> busy_{false};  // a loop runs, or the size changes
    std::atomic<int> size_{1};
    int64_t count_ = 0;
    Task task_ = nullptr;
    const void* context_ = nullptr;
    // High half: number of the loop, low half: tasks that nobody has claimed.
    alignas(64) std::atomic<uint64_t> work_{0};
    alignas(64) std::atomic<int64_t> num_done_{0};
    alignas(64) std::atomic<int> num_sleeping_{0};
    std::atomic<bool> stopping_{false};
    std::mutex sleep_mutex_;
    std::condition_variable sleepers_;
    std::vector<std::thread> workers_;
};

// Never destroyed: threads of the host may still compute while the process ends.
std::atomic<ThreadPool*> current{nullptr};
std::atomic<int> wanted_size{1};

// A child process has no workers, and what its copy of the pool says may be half written: it gets a new pool.
void forget_pool() { current.store(nullptr, std::memory_order_relaxed); }

ThreadPool& pool() {
    ThreadPool* found = current.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto made = std::make_unique<ThreadPool>();
    made->resize(wanted_size.load(std::memory_order_relaxed));
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return *made.release();
    made->resize(1);
    return *found;
}

[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_pool);

}  // namespace

void run_tasks(int64_t count, Task task, const void* context) { pool().run(count, task, context); }

int num_threads() { return pool().size(); }

struct SetNumThreads {
    int64_t count;
};

}  // namespace pageport

PAGEPORT_KERNEL(set_num_threads, pageport::SetNumThreads) {
    const int count = arguments.count < 1 ? 1 : static_cast<int>(arguments.count);
    pageport::wanted_size.store(count, std::memory_order_relaxed);
    if (count != pageport::num_threads()) pageport::pool().resize(count);
}
