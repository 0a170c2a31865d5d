"""OpenVINO GenAI's continuous-batching pipeline on a folder in its own format, or on a GGUF file.

PEERS/openvino/venv/bin/python bench/run_openvino.py MODEL [--mode offline|cold] [--precision f32|bf16|f16]
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from runner import Generate, Timing, run, runner_parser
from workloads import Request


def main() -> None:
    parser = runner_parser(__doc__, engine="openvino", modes=("offline", "cold", "first-token"))
    parser.add_argument("--precision", default="f32", help="of the arithmetic")
    parser.add_argument("--kv-precision", help="of the KV cache; default: the runtime's choice")
    parser.add_argument("--cache-gib", type=int, default=2)
    parser.add_argument("--max-num-batched-tokens", type=int, default=512)
    arguments = parser.parse_args()
    run(arguments, lambda: open_openvino(arguments), baseline_import="openvino")


@contextmanager
def open_openvino(arguments: Namespace) -> Iterator[Generate]:
    """Load the model; what is yielded generates."""
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = arguments.cache_gib
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = arguments.max_num_batched_tokens
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": arguments.precision,
        "INFERENCE_NUM_THREADS": arguments.threads,
    }
    if arguments.kv_precision:
        properties["KV_CACHE_PRECISION"] = arguments.kv_precision
    pipeline = openvino_genai.ContinuousBatchingPipeline(arguments.model, scheduler, "CPU", properties)
    ids = count()

    def add(request: Request) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = request["max_tokens"]
        config.ignore_eos = True
        config.do_sample = False
        prompt = openvino.Tensor(np.array([request["prompt"]], dtype=np.int64))
        return pipeline.add_request(next(ids), prompt, config)

    def generate(requests: Sequence[Request]) -> Timing | None:
        start = time.perf_counter()
        handles = [add(request) for request in requests]
        # A step's end is a token's time only when the step held the whole prompt; until then none is generated.
        token_times: list[float] = []
        generated: list[list[int]] = [[] for _ in requests]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            if len(requests) == 1 and handles[0].can_read():
                token_times.append(time.perf_counter())
                generated[0] += _new_tokens(handles[0].read())
        for tokens, handle in zip(generated, handles, strict=True):
            if not tokens:
                tokens += handle.read_all()[0].generated_ids
        lengths = [len(tokens) for tokens in generated]
        if lengths != [request["max_tokens"] for request in requests]:
            raise RuntimeError(f"OpenVINO answered with {lengths} tokens.")
        return Timing(token_times[0] - start, token_times[-1] - token_times[0]) if len(requests) == 1 else None

    yield generate


def _new_tokens(outputs: Any) -> list[int]:
    """Return the tokens of the only sequence that one read of a handle brings."""
    return list(next(iter(outputs.values())).generated_ids)


if __name__ == "__main__":
    main()
