"""Run a command so that kernels which tests compile are checked by AddressSanitizer and UndefinedBehaviorSanitizer.

python backends/cpu/tests/sanitized.py python -m pytest -m "kernels and not full" backends/cpu/tests
"""

import os
import subprocess
import sys

COMPILER = "g++"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1"


def environment() -> dict[str, str]:
    """Return this process's environment and what the sanitizers need."""
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "CXX": COMPILER,
        "PAGEPORT_TEST_KERNEL_FLAGS": FLAGS,
        # Python is not compiled with it, and it must come before any other library.
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python's own allocator would hide where its buffers end.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
