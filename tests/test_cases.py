"""Every fault that people met in other engines, of the kinds below, has a test that names it."""

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parent
CASES = (
    # detokenize
    "DET-01", "DET-02", "DET-04",
    # stop
    "STP-01", "STP-03", "STP-04", "STP-06", "STP-07", "STP-09",
    # limits
    "LIM-01", "LIM-03", "LIM-05",
    # kv-cache
    "KVC-01", "KVC-03", "KVC-04", "KVC-05", "KVC-08", "KVC-09", "KVC-11",
    # sampling
    "SMP-01", "SMP-03", "SMP-04", "SMP-05", "SMP-07",
    # model-arch
    "ARC-01", "ARC-03", "ARC-04", "ARC-06", "ARC-08", "ARC-09", "ARC-11",
    # weights
    "GGU-01", "GGU-05", "WGT-01", "WGT-02", "LRA-01",
    # tokenizer
    "GGU-03", "TOK-02",
    # numerics
    "NUM-01",
    # tools and chat
    "TOL-01", "TOL-03", "TOL-04", "TOL-05", "TOL-07", "TPL-03", "TPL-04", "INT-03",
    # scheduler
    "SCH-01", "ABT-01", "ABT-02", "ABT-03", "REQ-02",
)  # fmt: skip


def named_tests() -> dict[str, list[str]]:
    """Return, for each id that a test's docstring names, the tests that do."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for case in re.findall(r"\b[A-Z]{3}-\d{2}\b", ast.get_docstring(node) or ""):
                    found[case].append(f"{file.relative_to(TESTS)}::{node.name}")
    return found


def test_every_case_is_named_by_a_test() -> None:
    found = named_tests()
    assert [case for case in CASES if case not in found] == []
