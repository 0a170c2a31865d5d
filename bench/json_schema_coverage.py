"""Measure how much of JSON Schema constrained output understands, on the public JSON-Schema-Test-Suite.

The suite is in the source distribution of the ``jsonschema`` package:

    pip download --no-deps --no-binary :all: jsonschema && tar xf jsonschema-*.tar.gz
    python bench/json_schema_coverage.py jsonschema-*/json/tests/draft2020-12

Every schema of the suite is compiled as a request's would be; every instance is then written as compact JSON, and the
compiled grammar either takes it or does not. A schema is refused when it does not compile, and costs its client a 400;
what matters after that is that no invalid instance is taken. A valid one that is not (a property out of the schema's
order, say) only narrows what the model may write. ``--library xgrammar`` measures that one in the same way, where it
is installed.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pageport.sampling.grammar_check import SingleBytes
from pageport.sampling.grammar_checker import GrammarChecker
from pageport.sampling.grammar_source import grammar_limits, grammar_text
from pageport.sampling.structured import StructuredOutput


class Refused(Exception):
    """A schema does not compile."""


Takes = Callable[[str], bool]


class Library(Protocol):
    def compile(self, schema: str) -> Takes: ...


class LLGuidance:
    """What pageport does: tried in a process of its own first, then compiled."""

    def __init__(self) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        self._bytes = SingleBytes()
        self._tokenizer = LLTokenizer(TokenizerWrapper(self._bytes))
        self._checker = GrammarChecker()

    def compile(self, schema: str) -> Takes:
        from llguidance import LLMatcher

        structured = StructuredOutput(json_schema=schema, allows_whitespace=False)
        problem = self._checker.find_problem(structured)
        if problem:
            raise Refused(problem)
        start = LLMatcher(self._tokenizer, grammar_text(structured), log_level=0, limits=grammar_limits())

        def takes(text: str) -> bool:
            matcher, token_ids = start.deep_copy(), self._bytes(text)
            return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

        return takes


class XGrammar:
    """The same, unguarded."""

    def __init__(self) -> None:
        import xgrammar  # type: ignore[import-not-found]  # only where somebody compares

        self._library = xgrammar
        info = xgrammar.TokenizerInfo(list(SingleBytes.tokens), stop_token_ids=[SingleBytes.eos_token_id])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Takes:
        try:
            compiled = self._compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        except Exception as error:  # its kinds of errors are its own
            raise Refused(str(error)) from error

        def takes(text: str) -> bool:
            matcher = self._library.GrammarMatcher(compiled)
            return bool(matcher.accept_string(text) and matcher.accept_token(SingleBytes.eos_token_id))

        return takes


class Row(NamedTuple):
    """Counts of one keyword's file."""

    keyword: str
    schemas: int = 0
    compiled: int = 0
    valid: int = 0
    valid_taken: int = 0
    invalid: int = 0
    invalid_taken: int = 0

    def plus(self, other: "Row") -> "Row":
        return Row(self.keyword, *(a + b for a, b in zip(self[1:], other[1:], strict=True)))


def measure(library: Library, folder: Path) -> Iterator[tuple[Row, list[float]]]:
    """Yield a row and the seconds that compiling took for each file of the suite."""
    for file in sorted(folder.glob("*.json")):
        row, seconds = Row(file.stem), []
        for group in json.loads(file.read_text(encoding="utf-8")):
            begin = time.perf_counter()
            try:
                takes = library.compile(json.dumps(group["schema"]))
            except Refused:
                row = row.plus(Row("", schemas=1))
                continue
            seconds.append(time.perf_counter() - begin)
            row = row.plus(Row("", schemas=1, compiled=1)).plus(_instances(takes, group["tests"]))
        yield row, seconds


def _instances(takes: Takes, tests: list[dict[str, Any]]) -> Row:
    row = Row("")
    for test in tests:
        taken = takes(json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False))
        row = row.plus(
            Row("", valid=1, valid_taken=taken) if test["valid"] else Row("", invalid=1, invalid_taken=taken)
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, help="a draft's folder in the suite")
    parser.add_argument("--library", choices=("llguidance", "xgrammar"), default="llguidance")
    arguments = parser.parse_args()
    library: Library = LLGuidance() if arguments.library == "llguidance" else XGrammar()
    total, all_seconds = Row("**all**"), []
    print("| keyword | schemas compiled | valid taken | invalid taken |\n|---|---|---|---|")
    for row, seconds in measure(library, arguments.suite):
        total = total.plus(row)
        all_seconds += seconds
        _print(row)
    _print(total)
    ordered = sorted(all_seconds)
    median, worst = ordered[len(ordered) // 2], ordered[-1]
    print(f"\ncompiling took {1000 * median:.2f} ms in the median and {1000 * worst:.1f} ms at most")


def _print(row: Row) -> None:
    print(
        f"| {row.keyword} | {row.compiled} of {row.schemas} | {row.valid_taken} of {row.valid} "
        f"| {row.invalid_taken} of {row.invalid} |"
    )


if __name__ == "__main__":
    main()
