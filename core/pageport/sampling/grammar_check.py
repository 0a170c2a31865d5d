"""``python -m pageport.sampling.grammar_check``: try grammars out, in a process that may die of one.

Reads pickled ``StructuredOutput``s from its parent and answers each with a sentence, empty when nothing is wrong.
Compiling a few lines of schema can take minutes or all memory, inside native code that nothing interrupts but a
signal: this process sets itself a timer and a limit, and dies of either. No torch here, and no tokenizer: a
vocabulary of single bytes shows what a grammar costs.
"""

import json
import pickle
import random
import re
import resource
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pageport.sampling.grammar_source import grammar_limits, grammar_text
from pageport.sampling.schema_recursion import SchemaRecursion
from pageport.sampling.structured import StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TIME_LIMIT_S = 2.0
MEMORY_LIMIT_BYTES = 2 << 30
# Steps of generation that are tried.
NUM_TRIED_STEPS = 48

_END = 256
# Marks in a grammar of a special token, by name or number.
_SPECIAL = re.compile(r'(?<![\w?"/\\])<(\[[^\]\n]*\]|[^<>\s"/\[\]]+)>')


def main() -> int:
    """Answer until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from llguidance import LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(SingleBytes()))
    while True:
        try:
            structured = pickle.load(sys.stdin.buffer)  # from the parent: our own
        except EOFError:
            return 0
        # Of its own time, so that a busy machine refuses nothing; and of the clock's, whatever happens.
        signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, 5 * TIME_LIMIT_S)
        problem = find_problem(structured, tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pickle.dump(problem, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def find_problem(structured: StructuredOutput, tokenizer: "LLTokenizer") -> str:
    """Compile a grammar and generate a little with it; return what is wrong, or nothing."""
    from llguidance import LLMatcher

    if structured.json_schema is not None and SchemaRecursion(json.loads(structured.json_schema)).is_endless:
        return "the schema needs itself: no finite value satisfies it. Make the recursive part optional"
    if structured.grammar is not None:  # which special tokens there are is not known here
        structured = replace(structured, grammar=_SPECIAL.sub("<[257]>", structured.grammar))
    try:
        matcher = LLMatcher(tokenizer, grammar_text(structured), log_level=0, limits=grammar_limits())
    except ValueError as error:
        return str(error)
    return matcher.get_error() or _walk(matcher)


def _walk(matcher: "LLMatcher") -> str:
    choose = random.Random(0)
    for step in range(NUM_TRIED_STEPS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or mask == 0:
            return "nothing satisfies it" if step == 0 else "a step of it costs too much"
        options = [byte for byte in range(_END) if mask >> byte & 1]
        if not options:
            return ""
        matcher.consume_token(choose.choice(options))
    return ""


class SingleBytes:
    """A vocabulary, in the form that llguidance reads."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", b"<special>")
    special_token_ids = (_END, _END + 1)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


if __name__ == "__main__":
    sys.exit(main())
