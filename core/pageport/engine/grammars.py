"""``Grammars``: compiles what requests want of their outputs, beside the step loop."""

import concurrent.futures
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from pageport.engine.messages import EngineRequest
from pageport.errors import InvalidParameter
from pageport.sampling.grammar import Grammar, GrammarError, Vocabulary
from pageport.sampling.grammar_checker import GrammarChecker
from pageport.sampling.structured import StructuredOutput

# Grammars that are kept when nobody uses them, and refusals, each of which may have cost two seconds.
MAX_KEPT = 64
# Each has a process that tries grammars out; an explosive one keeps only one of them busy.
NUM_WORKERS = 2
MAX_SHOWN_CHARACTERS = 400


class _Waiting(NamedTuple):
    request: EngineRequest
    arrived_at: float
    grammar: "Future[Grammar]"


class Compiled(NamedTuple):
    """A request whose grammar is there, or why it is refused."""

    request: EngineRequest
    arrived_at: float  # seconds, the engine's clock
    grammar: Grammar | InvalidParameter


class Grammars:
    """Equal grammars are compiled once. Nothing is loaded or started before the first is wanted."""

    def __init__(self, load_vocabulary: Callable[[], Vocabulary]) -> None:
        """Keep how to get the vocabulary, on a thread of its own, once."""
        self.on_compiled: Callable[[], None] | None = None  # called on another thread
        self._load_vocabulary = load_vocabulary
        self._vocabulary: Vocabulary | None = None
        self._loading = threading.Lock()
        self._known: OrderedDict[StructuredOutput, Future[Grammar]] = OrderedDict()
        self._waiting: list[_Waiting] = []
        self._workers: ThreadPoolExecutor | None = None
        self._checkers = tuple(GrammarChecker() for _ in range(NUM_WORKERS))
        self._idle_checkers: queue.SimpleQueue[GrammarChecker] = queue.SimpleQueue()
        for checker in self._checkers:
            self._idle_checkers.put(checker)

    @property
    def is_waited_for(self) -> bool:
        """Are requests held back?"""
        return bool(self._waiting)

    @property
    def has_compiled(self) -> bool:
        """Is there something to take?"""
        return any(waiting.grammar.done() for waiting in self._waiting)

    def compile(self, structured: StructuredOutput) -> Grammar:
        """Return a grammar, compiled now unless it is known.

        Raises:
            InvalidParameter: it cannot be used; says why.
        """
        return _result(structured, self._compiling(structured))

    def known(self, structured: StructuredOutput) -> Grammar | None:
        """Return a grammar if it is compiled.

        Raises:
            InvalidParameter: it is known that it cannot be used.
        """
        grammar = self._compiling(structured)
        return _result(structured, grammar) if grammar.done() else None

    def wait_for(self, request: EngineRequest, structured: StructuredOutput, arrived_at: float) -> None:
        """Hold ``request`` back until its grammar is compiled; ``take`` then returns it."""
        grammar = self._compiling(structured)
        self._waiting.append(_Waiting(request, arrived_at, grammar))
        grammar.add_done_callback(lambda _: self.on_compiled() if self.on_compiled is not None else None)

    def take(self) -> list[Compiled]:
        """Return the requests that need wait no longer, in the order they came."""
        ready = [waiting for waiting in self._waiting if waiting.grammar.done()]
        self._waiting = [waiting for waiting in self._waiting if waiting not in ready]
        return [_compiled(waiting) for waiting in ready]

    def forget(self, request_id: str) -> None:
        """Drop a request that waits, if it does."""
        self._waiting = [waiting for waiting in self._waiting if waiting.request.request_id != request_id]

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is compiled, if anything is waited for."""
        if self._waiting:
            grammars = [waiting.grammar for waiting in self._waiting]
            concurrent.futures.wait(grammars, timeout_s, concurrent.futures.FIRST_COMPLETED)

    def close(self) -> None:
        """End the processes."""
        if self._workers is None:
            return
        self._workers.shutdown(wait=False, cancel_futures=True)
        for checker in self._checkers:
            checker.close()

    def _compiling(self, structured: StructuredOutput) -> "Future[Grammar]":
        known = self._known.get(structured)
        if known is None:
            known = self._known[structured] = self._pool().submit(self._check_and_compile, structured)
            if len(self._known) > MAX_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(structured)
        return known

    def _pool(self) -> ThreadPoolExecutor:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="grammars")
        return self._workers

    def _check_and_compile(self, structured: StructuredOutput) -> Grammar:
        checker = self._idle_checkers.get()
        try:
            problem = checker.find_problem(structured)
        finally:
            self._idle_checkers.put(checker)
        if problem:
            raise GrammarError(problem)
        with self._loading:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
        return Grammar(structured, self._vocabulary)


def _compiled(waiting: _Waiting) -> Compiled:
    structured = waiting.request.sampling.structured
    assert structured is not None
    try:
        return Compiled(waiting.request, waiting.arrived_at, _result(structured, waiting.grammar))
    except InvalidParameter as error:
        return Compiled(waiting.request, waiting.arrived_at, error)


def _result(structured: StructuredOutput, grammar: "Future[Grammar]") -> Grammar:
    try:
        return grammar.result()
    except Exception as error:  # whatever it is, it is this request's
        problem = " ".join(str(error).split())
        if len(problem) > MAX_SHOWN_CHARACTERS:
            problem = problem[: MAX_SHOWN_CHARACTERS - 1] + "…"
        raise InvalidParameter(
            f"{structured.parameter} cannot be followed: {problem.rstrip('.')}.", structured.parameter
        ) from error
