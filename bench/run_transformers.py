"""transformers: ``generate`` one by one or in static batches, or its own continuous batching.

PEERS/transformers/venv/bin/python bench/run_transformers.py HF_FOLDER [--method one-by-one|static|continuous]
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from runner import Generate, Timing, TokenClock, run, runner_parser
from workloads import Request

# SmolLM2's <|im_end|>; what stands before a shorter prompt of a static batch is masked.
PAD_ID = 2


def main() -> None:
    parser = runner_parser(__doc__, engine="transformers", modes=("offline", "cold", "first-token"))
    parser.add_argument("--method", choices=("one-by-one", "static", "continuous"), default="one-by-one")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--batch-size", type=int, default=16, help="of a static batch")
    parser.add_argument("--num-blocks", type=int, default=256, help="of continuous batching's cache")
    parser.add_argument("--max-batch-tokens", type=int, default=512, help="of a step of continuous batching")
    arguments = parser.parse_args()
    run(arguments, lambda: open_transformers(arguments))


@contextmanager
def open_transformers(arguments: Namespace) -> Iterator[Generate]:
    """Load the model; what is yielded generates."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=getattr(torch, arguments.dtype), attn_implementation=arguments.attention
    ).eval()
    methods: dict[str, Callable[[Any, Sequence[Request], Namespace], Timing | None]] = {
        "one-by-one": _one_by_one,
        "static": _static_batches,
        "continuous": _continuous,
    }
    method = methods[arguments.method]
    with torch.inference_mode():
        yield lambda requests: method(model, requests, arguments)


def _one_by_one(model: Any, requests: Sequence[Request], arguments: Namespace) -> Timing | None:
    import torch
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):  # type: ignore[misc]  # transformers is not installed where types are checked
        """Notes when each token comes; the prompt comes first."""

        def __init__(self) -> None:
            self.clock = TokenClock()
            self._is_prompt = True

        def put(self, value: Any) -> None:
            if not self._is_prompt:
                self.clock.tick()
            self._is_prompt = False

        def end(self) -> None:
            pass

    timing = None
    for request in requests:
        streamer = Streamer()
        tokens = model.generate(
            torch.tensor([request["prompt"]]),
            generation_config=_generation_config(request["max_tokens"]),
            streamer=streamer,
        )
        if tokens.shape[1] != len(request["prompt"]) + request["max_tokens"]:
            raise RuntimeError(f"transformers answered with {tokens.shape[1] - len(request['prompt'])} tokens.")
        timing = streamer.clock.timing()
    return timing if len(requests) == 1 else None


def _static_batches(model: Any, requests: Sequence[Request], arguments: Namespace) -> Timing | None:
    """Pad requests of similar output length to one batch; all of it runs until its longest ends."""
    import torch

    by_length = sorted(requests, key=lambda request: request["max_tokens"])
    for start in range(0, len(by_length), arguments.batch_size):
        batch = by_length[start : start + arguments.batch_size]
        width = max(len(request["prompt"]) for request in batch)
        missing = [width - len(request["prompt"]) for request in batch]
        ids = [[PAD_ID] * pad + request["prompt"] for pad, request in zip(missing, batch, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in missing]
        model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            generation_config=_generation_config(max(request["max_tokens"] for request in batch)),
        )
    return None


def _continuous(model: Any, requests: Sequence[Request], arguments: Namespace) -> Timing | None:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    generation = GenerationConfig(do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=PAD_ID)
    batching = ContinuousBatchingConfig(
        num_blocks=arguments.num_blocks, max_batch_tokens=arguments.max_batch_tokens, page_size=32
    )
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching, block=True, timeout=30
    ) as manager:
        wanted = {
            manager.add_request(
                request["prompt"], request_id=str(i), max_new_tokens=request["max_tokens"], eos_token_id=-1
            ): request["max_tokens"]
            for i, request in enumerate(requests)
        }
        lengths: dict[str, int] = {}
        while len(lengths) < len(wanted):
            output = manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                if output.error is not None:
                    raise RuntimeError(f"transformers refused a request: {output.error}")
                lengths[output.request_id] = len(output.generated_tokens)
            elif output is None and not manager.is_running():
                raise RuntimeError("transformers' batching thread has ended.")
    if lengths != wanted:
        raise RuntimeError(f"transformers answered with {lengths} tokens.")
    return None


def _generation_config(length: int) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=False, max_new_tokens=length, min_new_tokens=length, eos_token_id=None, pad_token_id=PAD_ID
    )


if __name__ == "__main__":
    main()
