"""The work that every engine is measured on: token-id prompts with exact output lengths, the same on every machine.

    python bench/workloads.py OUT.json [--vocab-size 49152] [--first-id 20] [--seed 1234]

W1: one request, 128 tokens in, 128 out.
W2: 64 requests at once, 32 … 512 tokens in, 16 … 256 out.
W3: 32 requests at once that share a prefix of 512 tokens, then 32 of their own; 64 out.
W4: 32 requests for HTTP at concurrency 16, as long as the first 32 of W2, with other tokens.
load-N: equal requests for HTTP at concurrency N, 128 tokens in, 64 out, three for each place.
context-N: one request of N tokens in and 33 out, for the cost of decoding behind that much context.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

VOCAB_SIZE = 49152
# The ids below are SmolLM2's special tokens.
FIRST_ID = 20
SEED = 1234
# Shifted ids stay inside every vocabulary that is at least this large.
SHIFT_RANGE = 49000


class Request(TypedDict):
    """One request; it ends after exactly ``max_tokens``."""

    prompt: list[int]
    max_tokens: int


Workloads = Mapping[str, Sequence[Request]]


def make_workloads(vocab_size: int = VOCAB_SIZE, first_id: int = FIRST_ID, seed: int = SEED) -> Workloads:
    """Draw W1 to W4. The order of the draws is part of the workload: any other order is other work."""
    source = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [source.randrange(first_id, vocab_size) for _ in range(count)]

    single: list[Request] = [{"prompt": draw(128), "max_tokens": 128}]
    burst: list[Request] = [
        {"prompt": draw(source.randint(32, 512)), "max_tokens": source.randint(16, 256)} for _ in range(64)
    ]
    prefix = draw(512)
    shared: list[Request] = [{"prompt": prefix + draw(32), "max_tokens": 64} for _ in range(32)]
    streamed: list[Request] = [
        {"prompt": draw(len(request["prompt"])), "max_tokens": request["max_tokens"]} for request in burst[:32]
    ]
    return {"W1": single, "W2": burst, "W3": shared, "W4": streamed}


def equal_requests(count: int, num_prompt_tokens: int, max_tokens: int) -> list[Request]:
    """Draw requests of one length."""
    source = random.Random(f"{SEED} {count} {num_prompt_tokens}")
    return [
        {
            "prompt": [source.randrange(FIRST_ID, SHIFT_RANGE) for _ in range(num_prompt_tokens)],
            "max_tokens": max_tokens,
        }
        for _ in range(count)
    ]


def shift(requests: Sequence[Request], step: int) -> list[Request]:
    """Return the same work with other token ids, so that no prefix cache remembers it from another ``step``.

    What requests share among themselves they still share.
    """
    return [
        {
            "prompt": [FIRST_ID + (token - FIRST_ID + 7 * step) % SHIFT_RANGE for token in request["prompt"]],
            "max_tokens": request["max_tokens"],
        }
        for request in requests
    ]


def num_prompt_tokens(requests: Sequence[Request]) -> int:
    return sum(len(request["prompt"]) for request in requests)


def num_output_tokens(requests: Sequence[Request]) -> int:
    return sum(request["max_tokens"] for request in requests)


def read_workload(path: Path | None, name: str) -> list[Request]:
    """Return one workload by its name; W1 to W4 from the file where one is given.

    Raises:
        ValueError: there is none of that name.
    """
    family, _, number = name.partition("-")
    if family == "load" and number.isdigit():
        return equal_requests(3 * int(number), 128, 64)
    if family == "context" and number.isdigit():
        return equal_requests(1, int(number), 33)
    workloads: Workloads = json.loads(path.read_text()) if path else make_workloads()
    if name not in workloads:
        raise ValueError(f"There is no workload {name}. There are {', '.join(workloads)}, load-N and context-N.")
    return list(workloads[name])


def shorten(requests: Sequence[Request], limit: int | None, max_tokens: int | None) -> list[Request]:
    """Return the first ``limit`` requests with at most ``max_tokens`` output tokens each, to try a runner."""
    return [
        {"prompt": request["prompt"], "max_tokens": min(request["max_tokens"], max_tokens or request["max_tokens"])}
        for request in requests[:limit]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--first-id", type=int, default=FIRST_ID)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    workloads = make_workloads(arguments.vocab_size, arguments.first_id, arguments.seed)
    arguments.out.write_text(json.dumps(workloads))
    for name, requests in workloads.items():
        longest = max(len(request["prompt"]) + request["max_tokens"] for request in requests)
        print(
            f"{name}: {len(requests)} requests, {num_prompt_tokens(requests)} prompt tokens, "
            f"{num_output_tokens(requests)} output tokens, the longest {longest}"
        )


if __name__ == "__main__":
    main()
