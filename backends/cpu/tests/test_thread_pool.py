"""The kernels' thread pool: each task exactly once, asleep when idle, well-behaved among other processes."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pageport_cpu.compiler import KERNELS, Kernels, compile_library
from pageport_cpu.instruction_sets import InstructionSet
from pageport_cpu.library import Arguments, Integer, Library, Pointer, pointer

NATIVE = Path(__file__).parent / "native"


class CountTasks(Arguments):
    kernel = "count_tasks"
    _fields_ = (
        ("times", Pointer),
        ("sum", Pointer),
        ("count", Integer),
        ("loops", Integer),
        ("steps_per_task", Integer),
        ("missing", Integer),
    )


class NumThreads(Arguments):
    kernel = "num_threads"
    _fields_ = (("count", Pointer),)


@pytest.fixture(scope="session")
def thread_pool(tmp_path_factory: pytest.TempPathFactory, compiler: str, kernel_flags: tuple[str, ...]) -> Library:
    """The pool, with a kernel that counts what it runs."""
    folder = tmp_path_factory.mktemp("pool")
    for source in (KERNELS / "kernel.h", *KERNELS.glob("thread_pool.*"), NATIVE / "count_tasks.cpp"):
        shutil.copy(source, folder)
    shutil.copy(NATIVE / "num_threads.cpp", folder)
    portable = InstructionSet(name="portable", machines=())
    path = compile_library(portable, folder / "built", compiler, Kernels(folder, extra_flags=kernel_flags))
    return Library(path, "portable")


@pytest.fixture
def two_threads(thread_pool: Library) -> Iterator[Library]:
    thread_pool.set_num_threads(2)
    yield thread_pool
    thread_pool.set_num_threads(1)


def run(pool: Library, count: int, loops: int = 1, steps_per_task: int = 1, missing: int = 0) -> list[int]:
    """Return how often each task ran, with a few that must not have; every second loop lacks the ``missing`` last."""
    times, sums = torch.zeros(2, count + 8, dtype=torch.int64)
    pool.run(CountTasks(pointer(times), pointer(sums), count, loops, steps_per_task, missing))
    return times.tolist()


def num_threads(pool: Library) -> int:
    count = torch.zeros(1, dtype=torch.int64)
    pool.run(NumThreads(pointer(count)))
    return int(count)


def num_tasks_of(process: int) -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_task_runs_exactly_once(thread_pool, threads):
    thread_pool.set_num_threads(threads)
    for count in [*range(40), 64, 255, 256, 1000]:
        assert run(thread_pool, count) == [1] * count + [0] * 8
    thread_pool.set_num_threads(1)


@pytest.mark.full
def test_every_task_of_loops_of_any_length_runs_exactly_once(two_threads):
    for count in range(1001):
        assert run(two_threads, count, loops=20) == [20] * count + [0] * 8


@pytest.mark.parametrize("count", [2, 3, 17])
def test_loops_in_quick_succession_do_not_mix(two_threads, count):
    assert run(two_threads, count, loops=200_000) == [200_000] * count + [0] * 8


@pytest.mark.parametrize("threads", [2, 3])
def test_loops_of_different_lengths_do_not_mix(thread_pool, threads):
    thread_pool.set_num_threads(threads)
    ran = run(thread_pool, 30, loops=200_000, missing=27)
    thread_pool.set_num_threads(1)
    assert ran == [200_000] * 3 + [100_000] * 27 + [0] * 8


def test_two_callers_at_once_are_both_served(two_threads):
    results: list[list[int]] = []
    callers = [threading.Thread(target=lambda: results.append(run(two_threads, 30, loops=20_000))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [[20_000] * 30 + [0] * 8] * 2


def test_the_number_of_threads_changes_while_others_compute(thread_pool):
    results: list[list[int]] = []
    caller = threading.Thread(target=lambda: results.append(run(thread_pool, 9, loops=100_000)))
    caller.start()
    for threads in (1, 2, 1, 3, 2, 1) * 5:
        thread_pool.set_num_threads(threads)
        assert num_threads(thread_pool) == threads
    caller.join()
    assert results == [[100_000] * 9 + [0] * 8]


def test_threads_end_when_the_pool_shrinks(thread_pool):
    before = num_tasks_of(os.getpid())
    thread_pool.set_num_threads(4)
    assert num_tasks_of(os.getpid()) == before + 3
    thread_pool.set_num_threads(1)
    assert num_tasks_of(os.getpid()) == before


@pytest.mark.parametrize("asked", [0, -3])
def test_there_is_always_one_thread(thread_pool, asked):
    thread_pool.set_num_threads(asked)
    assert num_threads(thread_pool) == 1
    assert run(thread_pool, 3) == [1] * 3 + [0] * 8


def test_an_idle_pool_uses_no_processor(two_threads):
    run(two_threads, 64, loops=100)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.01


def test_a_sleeping_pool_wakes(two_threads):
    for _ in range(20):
        time.sleep(0.002)
        assert run(two_threads, 64, steps_per_task=1000) == [1] * 64 + [0] * 8


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_process_has_its_own_pool(two_threads):
    def child() -> None:
        good = run(two_threads, 50, loops=100) == [100] * 50 + [0] * 8
        os._exit(0 if good and num_threads(two_threads) == 2 else 1)

    run(two_threads, 50)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    assert process.exitcode == 0
    assert run(two_threads, 50) == [1] * 50 + [0] * 8


def seconds(pool: Library) -> float:
    """Time some 2000 loops of 16 tasks of a few microseconds."""
    start = time.perf_counter()
    run(pool, 16, loops=2000, steps_per_task=4000)
    return time.perf_counter() - start


def test_busy_neighbours_slow_the_pool_down_by_no_more_than_their_share(two_threads):
    alone = min(seconds(two_threads) for _ in range(3))
    spin = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    neighbours = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    try:
        time.sleep(0.2)
        contended = min(seconds(two_threads) for _ in range(3))
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    # Half of each processor makes 2, and whatever else runs adds to it; a loop that waits for a time slice of
    # milliseconds each time makes more than 100.
    assert contended < 20 * alone


def compile_stress(compiler: str, folder: Path, *flags: str) -> Path:
    program = folder / "stress"
    sources = [str(NATIVE / "thread_pool_stress.cpp"), str(KERNELS / "thread_pool.cpp")]
    options = ["-std=c++17", "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", *flags, f"-I{KERNELS}"]
    subprocess.run([compiler, *options, *sources, "-o", str(program)], check=True)
    return program


@pytest.mark.full
def test_the_pool_has_no_data_race(tmp_path, compiler):
    program = compile_stress(compiler, tmp_path, "-fsanitize=thread")
    environment = {**os.environ, "TSAN_OPTIONS": "die_after_fork=0"}
    done = subprocess.run([str(program), "500"], env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
def test_the_race_detector_sees_a_race(tmp_path, compiler):
    racy = tmp_path / "racy.cpp"
    racy.write_text(
        "#include <thread>\nint x;\n"
        "int main() { std::thread t([] { for (int i = 0; i < 100000; ++i) ++x; });\n"
        "for (int i = 0; i < 100000; ++i) ++x;\nt.join(); }\n"
    )
    subprocess.run(
        [compiler, "-fsanitize=thread", "-g", "-pthread", str(racy), "-o", str(tmp_path / "racy")], check=True
    )
    done = subprocess.run([str(tmp_path / "racy")], capture_output=True, text=True)
    assert "data race" in done.stderr
