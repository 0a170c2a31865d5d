"""pageport: in this process, as a server, or from a cold start.

    python bench/run_pageport.py MODEL [--mode offline|http|cold] [--which W1,W2,W3] [--setting NAME=VALUE ...]

``--setting`` is any of pageport's settings by its name in ``LLM(...)``, such as ``dtype=float32``.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runner import Generate, Server, Timing, TokenClock, run, runner_parser
from workloads import Request

# What the workloads need: 64 sequences at once that hold 26 thousand tokens; blocks are of 16. Like the caches of other
# engines, this one takes its memory while loading.
DEFAULTS: dict[str, Any] = {"max_num_seqs": 64, "num_kv_blocks": 2304, "backend_options": ["cache=eager"]}


def main() -> None:
    parser = runner_parser(__doc__, engine="pageport")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    settings = {**DEFAULTS, **dict(map(parse_setting, arguments.setting))}
    run(
        arguments,
        lambda: open_pageport(arguments.model, settings),
        lambda port: _server(arguments, settings, port),
    )


def parse_setting(text: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a value that is JSON (a number, true, null) is read as such, anything else is text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


@contextmanager
def open_pageport(model: str, settings: dict[str, Any]) -> Iterator[Generate]:
    """Load the model; what is yielded generates."""
    from pageport import LLM, SamplingParams

    with LLM(model, **settings) as llm:

        def params(request: Request) -> SamplingParams:
            length = request["max_tokens"]
            return SamplingParams(
                temperature=0, max_tokens=length, min_tokens=length, ignore_eos=True, detokenize=False
            )

        def generate(requests: Sequence[Request]) -> Timing | None:
            if len(requests) == 1:
                return stream(requests[0])
            outputs = llm.generate([r["prompt"] for r in requests], [params(r) for r in requests], use_tqdm=False)
            errors = [output.error for output in outputs if output.error]
            if errors:
                raise RuntimeError(f"pageport ended a request: {errors[0]}")
            lengths = [len(output.outputs[0].token_ids) for output in outputs]
            _check_lengths(lengths, requests)
            return None

        def stream(request: Request) -> Timing:
            clock, length = TokenClock(), 0
            for delta in llm.stream(request["prompt"], params(request)):
                if delta.error:
                    raise RuntimeError(f"pageport ended a request: {delta.error}")
                if delta.token_ids:
                    clock.tick()
                length += len(delta.token_ids)
            _check_lengths([length], [request])
            return clock.timing()

        yield generate


def _check_lengths(lengths: Sequence[int], requests: Sequence[Request]) -> None:
    wanted = [request["max_tokens"] for request in requests]
    if list(lengths) != wanted:
        raise RuntimeError(f"pageport answered with {list(lengths)} tokens instead of {wanted}.")


def _server(arguments: Namespace, settings: dict[str, Any], port: int) -> Server:
    command = [sys.executable, "-m", "pageport", "serve", "--model", arguments.model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            command += [word for item in value for word in (f"--{option.removesuffix('s')}", str(item))]
        else:
            command += [f"--{option}", str(value)]
    return Server(command, port)


if __name__ == "__main__":
    main()
