"""``GrammarChecker``: the parent's end of a ``grammar_check`` process."""

import pickle
import subprocess
import sys
from contextlib import suppress

from pageport.sampling.grammar_check import TIME_LIMIT_S
from pageport.sampling.structured import StructuredOutput


class GrammarChecker:
    """One process, started when first needed and again when a grammar has killed it. One thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def find_problem(self, structured: StructuredOutput) -> str:
        """Return what is wrong with a grammar, within the time that one may take; nothing when it is right."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump(structured, process.stdin)
            process.stdin.flush()
            return str(pickle.load(process.stdout))  # from our own process
        except (OSError, EOFError, pickle.UnpicklingError):
            self.close()
            return f"compiling it takes more than {TIME_LIMIT_S:g} seconds, or too much memory. Simplify it"

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pageport.sampling.grammar_check"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process
