"""The sanitizers that `make sanitize` runs the kernels under see what is wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pageport_cpu.compiler import KERNELS

TESTS = Path(__file__).parent
RUN_THE_BROKEN_KERNEL = """
import ctypes, os, shlex, sys
from pathlib import Path
from pageport_cpu.compiler import Kernels, compile_library
from pageport_cpu.instruction_sets import InstructionSet

class WriteBeyondTheEnd(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("count", ctypes.c_int64))

folder, count = Path(sys.argv[1]), int(sys.argv[2])
kernels = Kernels(folder, extra_flags=tuple(shlex.split(os.environ["PAGEPORT_TEST_KERNEL_FLAGS"])))
library = compile_library(InstructionSet(name="portable", machines=()), folder / "built", os.environ["CXX"], kernels)
out = (ctypes.c_float * 100)()
ctypes.CDLL(str(library)).pageport_write_beyond_the_end(ctypes.byref(WriteBeyondTheEnd(ctypes.addressof(out), count)))
print("done")
"""


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_write_beyond_the_end_is_seen(tmp_path):
    for source in (KERNELS / "kernel.h", TESTS / "native" / "write_beyond_the_end.cpp"):
        shutil.copy(source, tmp_path)
    command = [sys.executable, str(TESTS / "sanitized.py"), sys.executable, "-c", RUN_THE_BROKEN_KERNEL, str(tmp_path)]
    harmless, harmful = (subprocess.run([*command, n], capture_output=True, text=True) for n in ("99", "100"))
    assert (harmless.returncode, harmless.stdout) == (0, "done\n"), harmless.stderr
    assert harmful.returncode != 0
    assert "heap-buffer-overflow" in harmful.stderr
    assert "write_beyond_the_end.cpp" in harmful.stderr
