"""When kernels are compiled, where to, and what is said when they cannot be."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pageport_cpu import compiler as compiler_module
from pageport_cpu.compiler import KERNELS, CompilationFailed, Kernels, compile_library, find_compiler, understands
from pageport_cpu.instruction_sets import (
    INSTRUCTION_SETS,
    InstructionSet,
    available_sets,
    compilable_sets,
    read_processor_flags,
)
from pageport_cpu.kernel_store import cache_folder, describe_kernels, main, provide_library
from pageport_cpu.library import LibraryUnavailable

PORTABLE = InstructionSet(name="portable", machines=())
AVX2 = {"avx2", "fma", "f16c"}
AVX512_OF_2017 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def answer(library: Path) -> int:
    return ctypes.CDLL(str(library)).answer()


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    """A library of one function, `answer`, that returns what a header says."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    source = '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
    (folder / "answer.cpp").write_text(source)
    return Kernels(folder)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for libraries, with another one for those it cannot take."""
    monkeypatch.setenv("PAGEPORT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "built"


@pytest.fixture
def num_compiler_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each run of the compiler from now on."""
    runs: list[str] = []
    real_make = compiler_module._make

    def make(result: Path, command: list[str], current_name: object) -> None:
        runs.append(result.name)
        real_make(result, command, current_name)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler_module, "_make", make)
    return runs


def test_an_unchanged_library_is_not_compiled_again(kernels, built, compiler, num_compiler_runs):
    first = compile_library(PORTABLE, built, compiler, kernels)
    assert len(num_compiler_runs) == 2  # the object and the library
    assert compile_library(PORTABLE, built, compiler, kernels) == first
    assert len(num_compiler_runs) == 2
    assert answer(first) == 42


@pytest.mark.parametrize("changed", ["source", "header", "flag", "file"])
def test_a_change_makes_a_new_library(kernels, built, compiler, changed):
    first = compile_library(PORTABLE, built, compiler, kernels)
    if changed == "source":
        source = kernels.folder / "answer.cpp"
        source.write_text(source.read_text().replace("return ANSWER", "return ANSWER + 1"))
    elif changed == "header":
        (kernels.folder / "answer.h").write_text("#define ANSWER 43\n")
    elif changed == "flag":
        kernels = Kernels(kernels.folder, extra_flags=("-DANSWER=43", "-include", os.devnull, "-w"))
        (kernels.folder / "answer.h").write_text("")
    else:
        (kernels.folder / "answer.h").write_text("int answer_of(int);\n#define ANSWER answer_of(42)\n")
        (kernels.folder / "more.cpp").write_text("int answer_of(int x) { return x + 1; }\n")
    second = compile_library(PORTABLE, built, compiler, kernels)
    assert second != first
    assert answer(second) == 43


def test_only_changed_sources_are_compiled(kernels, built, compiler, num_compiler_runs):
    (kernels.folder / "other.cpp").write_text("int other() { return 1; }\n")
    compile_library(PORTABLE, built, compiler, kernels)
    num_compiler_runs.clear()
    (kernels.folder / "other.cpp").write_text("int other() { return 2; }\n")
    compile_library(PORTABLE, built, compiler, kernels)
    assert sorted(name.split("-")[0] for name in num_compiler_runs) == ["other", "pageport_cpu"]


def test_a_source_that_changes_while_it_is_compiled_is_compiled_again(kernels, built, compiler, monkeypatch):
    source = kernels.folder / "answer.cpp"
    real_run = subprocess.run

    def run_and_edit(*arguments, **options):
        done = real_run(*arguments, **options)
        source.write_text(source.read_text().replace("return ANSWER;", "return ANSWER + 1;"))
        return done

    monkeypatch.setattr(compiler_module.subprocess, "run", run_and_edit)
    library = compile_library(PORTABLE, built, compiler, kernels)
    assert library.name == kernels.library_name(PORTABLE)
    assert answer(library) == 43


def test_what_nothing_needs_is_removed_after_a_day(kernels, built, compiler):
    (built / "objects").mkdir(parents=True)
    old, young = built / "objects" / "gone-portable-0.o", built / "pageport_cpu-portable-0.so"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    compile_library(PORTABLE, built, compiler, kernels)
    assert (old.exists(), young.exists()) == (False, True)


def test_a_library_can_be_read_by_everybody(kernels, built, compiler):
    assert compile_library(PORTABLE, built, compiler, kernels).stat().st_mode & 0o777 == 0o644


def test_two_processes_compile_at_once(kernels, built, compiler):
    code = (
        "import sys; from pathlib import Path; from pageport_cpu.compiler import *; "
        "from pageport_cpu.instruction_sets import InstructionSet; "
        "print(compile_library(InstructionSet(name='portable', machines=()), Path(sys.argv[1]), sys.argv[2], "
        "Kernels(Path(sys.argv[3]))))"
    )
    command = [sys.executable, "-c", code, str(built), compiler, str(kernels.folder)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {process.communicate()[0] for process in processes}
    assert printed == {f"{built / kernels.library_name(PORTABLE)}\n"}
    assert list(built.rglob("*.part")) == []


def test_a_package_that_cannot_be_written_uses_the_cache_folder(kernels, tmp_path, built, compiler):
    (tmp_path / "file").touch()
    library = provide_library(kernels, tmp_path / "file" / "built")
    assert library.path.parent == tmp_path / "cache" / "kernels" == cache_folder()
    assert answer(library.path) == 42


def test_nowhere_to_store_says_which_setting_helps(kernels, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PAGEPORT_CACHE", str(tmp_path / "file"))
    with pytest.raises(LibraryUnavailable, match=r"cannot be stored: .*Set PAGEPORT_CACHE to a folder"):
        provide_library(kernels, tmp_path / "file")


def test_without_a_compiler_the_message_says_what_to_install(kernels, built, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LibraryUnavailable, match=r"there is no C\+\+ compiler\. Install .* apt install g\+\+"):
        provide_library(kernels, built)
    assert describe_kernels(kernels, built).startswith("none: there is no C++ compiler.")


def test_a_compiler_that_is_named_wrongly_is_named_in_the_message(kernels, built, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(LibraryUnavailable, match="CXX is 'no-such-compiler -O2', which is not there"):
        provide_library(kernels, built)


def test_a_compiler_may_have_options(kernels, built, compiler, monkeypatch):
    monkeypatch.setenv("CXX", f"{compiler} -DANSWER=44 -w")
    (kernels.folder / "answer.h").write_text("")
    assert answer(provide_library(kernels, built).path) == 44


def test_the_compilers_words_are_kept(kernels, built, compiler):
    (kernels.folder / "answer.h").write_text("#error this header is wrong\n")
    with pytest.raises(CompilationFailed, match="this header is wrong"):
        compile_library(PORTABLE, built, compiler, kernels)
    with pytest.raises(LibraryUnavailable, match=r"(?s)do not compile: .*this header is wrong"):
        provide_library(kernels, built)
    assert list(built.rglob("*.o")) == list(built.rglob("*.part")) == []


def test_kernels_that_do_not_compile_are_not_announced(kernels, built, compiler, capsys):
    (kernels.folder / "answer.h").write_text('#error "this header is wrong"\n')
    main(kernels, built)
    said = capsys.readouterr().out
    assert said.startswith("kernels: none: the kernels do not compile: ")
    assert said.endswith(" Until then torch's own operations are used.\n")


def test_an_old_compiler_makes_the_best_set_it_knows(kernels, built, compiler, tmp_path, monkeypatch):
    old = tmp_path / "old-compiler"
    old.write_text(f'#!/bin/sh\ncase "$*" in *avx*) exit 1;; esac\nexec {shutil.which(compiler)} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    assert not understands(str(old), INSTRUCTION_SETS[1])
    assert provide_library(kernels, built).target.name in ("portable", "neon")


def test_the_description_tells_what_will_serve(kernels, built, compiler):
    best = available_sets()[0].name
    assert describe_kernels(kernels, built) == f"{best} (compiled on first use, by {compiler})"
    provide_library(kernels, built)
    assert describe_kernels(kernels, built) == f"{best} (compiled)"


def test_a_worse_library_serves_where_the_best_is_not_built(kernels, built, compiler, monkeypatch):
    compile_library(PORTABLE, built, compiler, kernels)
    monkeypatch.setenv("CXX", "none")
    assert provide_library(kernels, built).target.name == "portable"
    assert describe_kernels(kernels, built).startswith("portable (compiled)")


@pytest.mark.parametrize(
    ("machine", "flags", "names"),
    [
        ("x86_64", AVX512_OF_2017 | {"avx512_vnni", "avx512_bf16"}, ["avx512", "avx2", "portable"]),
        ("x86_64", AVX512_OF_2017 | {"avx512_vnni"}, ["avx2", "portable"]),
        ("x86_64", AVX512_OF_2017, ["avx2", "portable"]),
        ("x86_64", AVX2 - {"f16c"}, ["portable"]),
        ("x86_64", set(), ["portable"]),
        ("aarch64", {"fp", "asimd"}, ["neon", "portable"]),
        ("riscv64", set(), ["portable"]),
    ],
)
def test_a_machine_runs_the_sets_its_processor_has(machine, flags, names):
    assert [target.name for target in available_sets(machine, frozenset(flags))] == names


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n", {"fpu", "avx2", "fma"}),
        ("processor\t: 0\nFeatures\t: fp asimd\n", {"fp", "asimd"}),
        ("vmx flags\t: vnmi\n", set()),
        (None, set()),
    ],
)
def test_processor_flags_are_read(tmp_path, text, flags):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert read_processor_flags(tmp_path / "cpuinfo") == flags


@pytest.mark.full
@pytest.mark.parametrize("name", ["g++", "clang++", "aarch64-linux-gnu-g++"])
def test_every_set_compiles_without_a_warning(name, tmp_path):
    assert shutil.which(name), f"{name} is not installed: `make compilers` installs it"
    for target in compilable_sets("aarch64" if name.startswith("aarch64") else None):
        assert compile_library(target, tmp_path, name, Kernels(KERNELS, extra_flags=("-Werror",))).exists()


def test_a_compiler_is_found():
    assert find_compiler() is not None
