"""vLLM's CPU build: ``LLM.generate`` in this process, or its server.

PEERS/vllm/venv/bin/python bench/run_vllm.py HF_FOLDER [--mode offline|http|cold] [--dtype float32] [--eager]
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner import Generate, Server, Timing, run, runner_parser
from workloads import Request


def main() -> None:
    parser = runner_parser(__doc__, engine="vllm")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--kv-cache-gib", type=int, default=4)
    arguments = parser.parse_args()
    os.environ.update(_environment(arguments))
    run(arguments, lambda: open_vllm(arguments), lambda port: _server(arguments, port))


@contextmanager
def open_vllm(arguments: Namespace) -> Iterator[Generate]:
    """Load the model; what is yielded generates."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=arguments.model,
        dtype=arguments.dtype,
        max_model_len=arguments.max_model_len,
        enforce_eager=arguments.eager,
        enable_prefix_caching=True,
        disable_log_stats=False,  # a request's timing is among the statistics
    )

    def generate(requests: Sequence[Request]) -> Timing | None:
        llm.reset_prefix_cache()
        params = [
            SamplingParams(temperature=0, max_tokens=r["max_tokens"], ignore_eos=True, detokenize=False)
            for r in requests
        ]
        outputs = llm.generate([{"prompt_token_ids": r["prompt"]} for r in requests], params, use_tqdm=False)
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        if lengths != [request["max_tokens"] for request in requests]:
            raise RuntimeError(f"vLLM answered with {lengths} tokens.")
        times = outputs[0].metrics
        if len(requests) > 1 or times is None:
            return None
        return Timing(times.first_token_latency, times.last_token_ts - times.first_token_ts)

    yield generate


def _environment(arguments: Namespace) -> dict[str, str]:
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(arguments.kv_cache_gib),
        # The engine in a process of its own and the API's threads would fight over two cores.
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{arguments.threads - 1}" if arguments.threads > 1 else "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _server(arguments: Namespace, port: int) -> Server:
    # The command `vllm` looks for a distribution of that name, and this build's has another.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", arguments.model]
    command += ["--dtype", arguments.dtype]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "model"]
    command += ["--max-model-len", str(arguments.max_model_len), "--enable-prefix-caching"]
    command += ["--enforce-eager"] if arguments.eager else []
    return Server(command, port, environment=_environment(arguments))


if __name__ == "__main__":
    main()
