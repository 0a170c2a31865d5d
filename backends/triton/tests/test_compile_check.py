"""What the kernels take on architectures that are not here: the committed table, and a few compilations now."""

import inspect
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from pageport_triton import compile_check, norms_kernel
from pageport_triton.compile_check import PAGE, TABLE, check_cases, main, outdated
from pageport_triton.compiled_case import KERNEL_MODULES, CompiledCase, case_name, cases_of
from pageport_triton.compiled_page import compiled_page
from pageport_triton.compiled_table import CompiledTable
from pageport_triton.kernel_hash import code, kernel_hash
from pageport_triton.resource_usage import ResourceUsage
from pageport_triton.targets import TARGETS

CASE = CompiledCase(
    architecture="sm90",
    name="norms/norm bf16",
    hash="0123",
    triton="3.9.0",
    has_matrix_product=True,
    usage=ResourceUsage(64, 0, 1024, 8),
)


@pytest.fixture(scope="module")
def table() -> CompiledTable:
    return CompiledTable.read(TABLE)


@pytest.mark.parametrize("architecture", TARGETS)
def test_committed_table_is_of_these_kernels(table: CompiledTable, architecture: str) -> None:
    assert list(outdated(table, architecture)) == [], "run python -m pageport_triton.compile_check --write"


def test_nothing_that_may_be_chosen_spills_or_needs_more_than_there_is(table: CompiledTable) -> None:
    cases = list(table.cases())
    assert {case.architecture for case in cases} == set(TARGETS)
    found = [(case.triton, case.architecture, case.name, *case.faults()) for case in cases]
    assert [case for case in found if len(case) > 3] == []


@pytest.mark.parametrize("architecture", TARGETS)
def test_oldest_and_newest_compiler_have_compiled_everything(table: CompiledTable, architecture: str) -> None:
    entries = table.entries[architecture]
    assert {name for name, entry in entries.items() if not {"3.6.0", table.newest} <= set(entry.usages)} == set()


def test_page_is_made_of_the_table(table: CompiledTable) -> None:
    assert PAGE.read_text() == compiled_page(table)


@pytest.mark.parametrize("architecture", TARGETS)
def test_names_of_cases_are_unique(architecture: str) -> None:
    names = [case_name(module, case) for module in KERNEL_MODULES for case in cases_of(module, architecture)]
    assert len(names) == len(set(names))


def test_decode_and_prefill_compile_to_what_the_table_says(table: CompiledTable) -> None:
    modules = ("decode_attention", "prefill_attention")
    architectures = ("sm90", "gfx942")
    first = {
        next(name for name in table.entries[architecture] if name.startswith(f"{module}/{module}"))
        for architecture, module in product(architectures, modules)
    }
    compiled = list(check_cases(architectures, modules, first))
    assert {case.architecture for case in compiled} == set(architectures)
    assert {case.name for case in compiled} == first
    for case in compiled:
        assert list(case.faults()) == []
        recorded = table.entries[case.architecture][case.name].usages
        assert recorded.get(case.triton, case.usage) == case.usage


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_every_case_compiles_without_faults_on_every_architecture(table: CompiledTable) -> None:
    found = list(check_cases(TARGETS, processes=2))
    assert [(case.architecture, case.name, *case.faults()) for case in found if any(case.faults())] == []
    assert len(found) == sum(map(len, table.entries.values()))


@pytest.mark.parametrize(
    ("usage", "word"),
    [
        (ResourceUsage(255, 8, 1024, 8), "spills 8 bytes"),
        (ResourceUsage(64, 0, 300_000, 8), "shared memory"),
        (ResourceUsage(64, 0, 1024, 0), "without matrix instructions"),
    ],
)
def test_faults_are_named(usage: ResourceUsage, word: str) -> None:
    assert list(CASE.faults()) == []
    (fault,) = replace(CASE, usage=usage).faults()
    assert word in fault


def test_fault_makes_the_check_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spilling = replace(CASE, usage=ResourceUsage(255, 8, 1024, 8))
    for case, expected in ((CASE, 0), (spilling, 1)):
        monkeypatch.setattr(compile_check, "check_cases", lambda *_, found=case, **__: [found])
        assert main(["--targets", "sm90", "--kernels", "norms"]) == expected
    assert "spills 8 bytes" in capsys.readouterr().err


def test_table_keeps_what_other_versions_made_of_the_same_source(tmp_path: Path) -> None:
    table = CompiledTable({})
    table.add([CASE, replace(CASE, triton="3.6.0"), replace(CASE, name="norms/other")])
    table.write(tmp_path / "table.json")
    again = CompiledTable.read(tmp_path / "table.json")
    assert again.entries == table.entries
    assert set(again.entries["sm90"][CASE.name].usages) == {"3.9.0", "3.6.0"}
    again.add([replace(CASE, hash="4567")])
    again.keep("sm90", [CASE.name])
    assert set(again.entries["sm90"][CASE.name].usages) == {"3.9.0"}
    assert list(again.entries["sm90"]) == [CASE.name]


def test_hash_follows_options_and_constants() -> None:
    case = next(iter(cases_of("norms", "sm90")))
    changed = [replace(case, options={"num_warps": 2}), replace(case, constexprs={**case.constexprs, "ROWS": 3})]
    assert len({kernel_hash(other) for other in (case, *changed)}) == 3


@pytest.mark.parametrize(("line", "is_same"), [("# Another reason.", True), ("x = 1", False)])
def test_hash_follows_code_and_not_comments(monkeypatch: pytest.MonkeyPatch, line: str, is_same: bool) -> None:
    function = norms_kernel.rms_norm_kernel.fn
    before = code(function)
    source = inspect.getsource(function)
    monkeypatch.setattr(inspect, "getsource", lambda _: f"{source}    {line}\n")
    assert (code.__wrapped__(function) == before) == is_same


def test_hash_follows_the_functions_a_kernel_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(cases_of("norms", "sm90")))
    before = kernel_hash(case)
    monkeypatch.setattr(norms_kernel, "rounded_to", norms_kernel.layer_norm_kernel)
    assert kernel_hash(case) != before


def test_cached_results_are_not_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = next(iter(cases_of("norms", "sm90")))
    name = case_name("norms", case)
    stored = replace(CASE, name=name, hash=kernel_hash(case))
    compile_check._store(stored)
    monkeypatch.setattr(compile_check, "_run", None)
    assert list(check_cases(["sm90"], ["norms"], [name])) == [stored]
