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
    # tools, chat and templates
    "TOL-01", "TOL-03", "TOL-04", "TOL-05", "TOL-07",
    "TPL-01", "TPL-03", "TPL-04", "TPL-06", "TPL-08", "TPL-09",
    # structured output
    "STR-01", "STR-03", "STR-04", "STR-05", "STR-07", "STR-09",
    # requests and answers
    "VAL-01", "VAL-03", "VAL-04", "VAL-06", "VAL-08", "VAL-09", "VAL-11",
    "INT-01", "INT-03", "INT-04", "INT-06", "LOG-01", "LOG-02", "LOG-04", "BAT-01",
    # embeddings
    "EMB-01",
    # operation
    "SEC-02", "SEC-03", "SEC-05", "SEC-06", "SEC-08", "SEC-09", "SEC-11",
    "OPS-01", "OPS-03", "MET-01", "MET-03", "NET-01", "NET-03", "NET-05",
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
