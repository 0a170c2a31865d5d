"""Calling kernels, and replaying what was called."""

import ctypes
from typing import ClassVar

import pytest
import torch

from pageport_cpu.library import Arguments, Integer, Library, LibraryUnavailable, Pointer, load_library, pointer
from pageport_cpu.norms import RmsNormArguments, rms_norm


@pytest.fixture
def buffers(library: Library) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, weight and output of a norm."""
    return torch.randn(3, 40), torch.rand(40), torch.zeros(3, 40)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def test_a_tape_runs_again_on_what_the_buffers_hold_now(library, buffers):
    x, weight, out = buffers
    with library.record() as tape:
        rms_norm(library, x, None, weight, 1e-5, out)
        rms_norm(library, out, None, weight, 1e-5, out)
    assert len(tape) == 2
    x.copy_(torch.randn(3, 40))
    tape.replay()
    torch.testing.assert_close(out.double(), norm(norm(x, weight), weight), rtol=1e-5, atol=1e-6)


def test_a_tape_keeps_its_arguments_alive(library, buffers):
    x, weight, out = buffers
    with library.record() as tape:
        rms_norm(library, x, None, weight, 1e-5, out)
    for _ in range(1000):  # would take the place of freed arguments
        RmsNormArguments()
    out.fill_(torch.nan)
    tape.replay()
    torch.testing.assert_close(out.double(), norm(x, weight), rtol=1e-5, atol=1e-6)


def test_a_tape_can_be_part_of_another(library, buffers):
    x, weight, out = buffers
    with library.record() as inner:
        rms_norm(library, x, None, weight, 1e-5, out)
    with library.record() as outer:
        inner.replay()
    del inner
    out.fill_(torch.nan)
    outer.replay()
    torch.testing.assert_close(out.double(), norm(x, weight), rtol=1e-5, atol=1e-6)


def test_kernels_are_not_noted_down_after_a_recording(library, buffers):
    x, weight, out = buffers
    with library.record() as tape:
        rms_norm(library, x, None, weight, 1e-5, out)
    rms_norm(library, x, None, weight, 1e-5, out)
    assert len(tape) == 1


def test_a_recording_that_fails_ends(library, buffers):
    with pytest.raises(ValueError, match="wrong"), library.record():
        raise ValueError("wrong")
    with library.record() as tape:
        pass
    tape.replay()
    assert len(tape) == 0


def test_arguments_of_another_size_than_the_kernels_are_noticed(every_library):
    class Short(Arguments):
        kernel: ClassVar[str] = "rms_norm"
        _fields_ = (("x", Pointer), ("count", Integer))

    library, size = Library(every_library._path, "any"), ctypes.sizeof(RmsNormArguments)
    with pytest.raises(AssertionError, match=rf"Short has 16 bytes, rms_norm in .* takes {size}"):
        library.run(Short(None, 0))


def test_a_kernel_that_is_not_there_is_noticed(every_library):
    class Missing(Arguments):
        kernel: ClassVar[str] = "make_coffee"
        _fields_ = (("cups", Integer),)

    with pytest.raises(AttributeError, match="pageport_make_coffee"):
        every_library.run(Missing(1))


def test_the_best_library_is_loaded_and_computes():
    library = load_library()
    x, weight, out = torch.randn(2, 16), torch.rand(16), torch.zeros(2, 16)
    rms_norm(library, x, None, weight, 1e-5, out)
    torch.testing.assert_close(out.double(), norm(x, weight), rtol=1e-5, atol=1e-6)


def test_a_library_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    broken = tmp_path / "pageport_cpu-portable-0.so"
    broken.write_text("no library")
    monkeypatch.setattr("pageport_cpu.kernel_store._find", lambda *arguments: broken)
    with pytest.raises(LibraryUnavailable, match=rf"{broken} cannot be loaded: .*Delete it"):
        load_library()


def test_two_libraries_in_one_process_do_not_share_threads(every_library):
    other = load_library()
    every_library.set_num_threads(1)
    other.set_num_threads(1)
    symbol = "_ZN8pageport9run_tasksElPFvPKvlES1_"  # pageport::run_tasks, were it visible
    assert not hasattr(ctypes.CDLL(str(every_library._path)), symbol)


def test_a_missing_tensor_is_a_null_pointer():
    assert pointer(None) is None
    tensor = torch.zeros(4)
    assert pointer(tensor[2:]) == tensor.data_ptr() + 8
