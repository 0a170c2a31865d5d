"""The native loops, and what they are compiled for."""

import os
from pathlib import Path

import pytest
import roofline

X86 = "model name\t: AMD EPYC\nflags\t\t: fpu avx2 fma avx512f avx512bw avx512vl avx512_vnni\n"


@pytest.fixture(scope="module", params=["native", "portable"])
def loops(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> roofline.Loops:
    flags = roofline.compiler_flags(roofline.cpu_features()) if request.param == "native" else []
    return roofline.Loops(roofline.compile_loops(flags, tmp_path_factory.mktemp("roofline")))


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_register_loops_do_more_than_a_thousand_million_operations_a_second(
    loops: roofline.Loops, kind: roofline.Kind
) -> None:
    peak = loops.peak(kind, 1, seconds=0.001, tries=1)
    assert 0.3 < peak.value < 1e5
    assert peak.loop in loops.names(kind)


def test_twice_the_rounds_take_twice_the_time(loops: roofline.Loops) -> None:
    rates = [max(loops.measure("float32", 0, 1, rounds) for _ in range(5)) for rounds in (100_000, 200_000)]
    assert 0.4 < rates[1] / rates[0] < 2.5


@pytest.mark.parametrize("threads", [1, 2])
def test_reads_are_at_the_pace_of_memory_and_not_of_a_cache(loops: roofline.Loops, threads: int) -> None:
    rate = loops.measure("read", len(loops.names("read")) - 1, threads, 1)
    loops.release()
    assert 1e8 < rate < 5e12


@pytest.mark.parametrize(
    ("features", "flags"),
    [
        ({"sse2"}, []),
        ({"avx2", "fma"}, ["-mavx2", "-mfma"]),
        ({"avx2", "fma", "avx512f", "avx512_vnni"}, ["-mavx2", "-mfma", "-mavx512f", "-mavx512vnni"]),
        ({"asimd", "asimddp"}, ["-march=armv8.2-a+dotprod"]),
    ],
)
def test_flags_follow_what_the_cpu_says(features: set[str], flags: list[str]) -> None:
    assert roofline.compiler_flags(frozenset(features)) == flags


def test_model_and_features_are_read_from_cpuinfo() -> None:
    assert roofline.cpu_model(X86) == "AMD EPYC"
    assert {"avx2", "avx512_vnni"} < roofline.cpu_features(X86)


def test_a_library_is_compiled_once_for_its_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "short.cpp").write_text("int one() { return 1; }")
    monkeypatch.setattr(roofline, "SOURCE", tmp_path / "short.cpp")
    first = roofline.compile_loops([], tmp_path)
    made = first.stat().st_mtime_ns
    assert roofline.compile_loops([], tmp_path) == first
    assert first.stat().st_mtime_ns == made
    assert roofline.compile_loops(["-O2"], tmp_path) != first


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.cpp").write_text("int one() { return unknown_name; }")
    monkeypatch.setattr(roofline, "SOURCE", tmp_path / "broken.cpp")
    with pytest.raises(roofline.NoCompiler, match="unknown_name"):
        roofline.compile_loops([], tmp_path)


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CXX", "no-such-compiler")
    with pytest.raises(roofline.NoCompiler, match=r"install g\+\+"):
        roofline.compile_loops([], tmp_path)
