"""``StopMatcher``: withholds, cuts exactly, and does not depend on the pieces."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.text.stop import StopMatcher, StopStep


def run(stops: list[str], texts: list[str], include: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include)
    shown = ""
    for text in texts:
        step = matcher.push(text)
        shown += step.text
        if step.matched is not None:
            return shown, step.matched
    return shown + matcher.flush(), None


@pytest.mark.parametrize("cut", range(1, 22))
def test_nothing_of_a_stop_string_is_shown_wherever_tokens_cut_it(cut: int) -> None:
    """STP-01."""
    text = "a three four five six"
    assert run([" three four five"], [text[:cut], text[cut:]]) == ("a", " three four five")
    assert run([" three four five"], list(text)) == ("a", " three four five")


def test_what_may_become_a_stop_string_is_withheld_until_it_cannot() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.push("xab") == StopStep("x")
    assert matcher.push("ab") == StopStep("ab")
    assert matcher.push("d") == StopStep("abd")


def test_a_repeated_beginning_is_withheld_no_more_than_needed() -> None:
    matcher = StopMatcher(["aab"])
    assert [matcher.push("a").text for _ in range(4)] == ["", "", "a", "a"]
    assert matcher.push("b") == StopStep("", "aab")


def test_the_end_gives_back_what_was_withheld() -> None:
    matcher = StopMatcher(["abc"])
    matcher.push("ab")
    assert matcher.flush() == "ab"
    assert matcher.flush() == ""


@pytest.mark.parametrize(("include", "shown"), [(False, "x"), (True, "x;y;z")])
def test_the_cut_is_exactly_after_an_included_stop_string(include: bool, shown: str) -> None:
    """STP-04."""
    assert run([";y;z"], ["x", ";", "y;", "z?"], include) == (shown, ";y;z")


def test_the_match_that_ends_first_wins() -> None:
    assert run(["abcd", "bc"], ["abcd"]) == ("a", "bc")


def test_of_two_that_end_together_the_longest_wins() -> None:
    assert run(["bc", "abc"], ["xabc"]) == ("x", "abc")


def test_a_stop_string_within_a_longer_beginning_is_found() -> None:
    assert run(["abxy", "bx"], ["abx"]) == ("a", "bx")


def test_no_stop_strings_or_empty_ones_match_nothing() -> None:
    assert run([], ["abc"]) == ("abc", None)
    assert run([""], ["abc"]) == ("abc", None)


def test_many_long_stop_strings_cost_no_more_a_character() -> None:
    """SEC-11: the number of automaton steps is bounded by the text, not by the stop strings."""
    matcher = StopMatcher(["a" * (1000 - i) + "b" for i in range(64)])
    started = time.perf_counter()
    for _ in range(20_000):
        matcher.push("a")
    assert time.perf_counter() - started < 5


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    include=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_any_chunking_finds_what_a_search_finds(text: str, stops: list[str], sizes: list[int], include: bool) -> None:
    """STP-01, STP-03, STP-04."""
    chunks, start = [], 0
    while start < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[start : start + size])
        start += size
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, _, stop = min(ends, default=(len(text), 0, None))
    expected = text[:end] if stop is None or include else text[: end - len(stop)]
    assert run(stops, chunks, include) == (expected, stop)
