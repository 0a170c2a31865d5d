"""Part: a model of LLaMA 8B's shape: decoding beside what reading memory allows, prefill beside what products allow."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from engine_run import EngineRun, Job
from measure import copy_bandwidth, matrix_rate
from part import Part
from random_model import random_llama

BATCHES = (1, 16, 64, 256)
PROMPT, WARM_STEPS, STEPS = 256, 12, 40
PREFILL_PROMPTS, PREFILL_TOKENS = 8, 2048


def main() -> None:
    with Part("time_llama") as part:
        dtype = torch.float32 if part.is_dry else torch.bfloat16
        bandwidth, rate = copy_bandwidth(part), matrix_rate(part, dtype)
        start = time.perf_counter()
        model = random_llama(part)
        settings = {
            "dtype": str(dtype).removeprefix("torch."),
            "max_model_len": 4096,
            "max_num_seqs": max(BATCHES),
            "enable_prefix_caching": False,
            "strict_ops": True,
            "num_kv_blocks": 1024 if part.is_dry else 16384,
        }
        with EngineRun(model, part.backend, **settings) as run:
            layers = model.model.layers.parameters()
            head = model.lm_head.weight
            num_read = sum(weight.numel() for weight in layers) + head.numel()
            kv_token = 2 * len(model.model.layers) * model.config.num_key_value_heads * model.config.head_dim
            vocabulary = head.shape[0]
            del model, layers, head
            part.add("loading s", round(time.perf_counter() - start, 1))
            for batch in BATCHES[:2] if part.is_dry else BATCHES:
                limit = step_limit(num_read, kv_token, batch, dtype.itemsize, bandwidth)
                part.add(f"decode, batch {batch}", decode(part, run, batch, vocabulary, limit))
            part.add("prefill", prefill(part, run, vocabulary, 2 * num_read, rate))


def step_limit(num_read: int, kv_token: int, batch: int, itemsize: int, bandwidth: float) -> float:
    """Return the seconds a decode step needs to read every weight, and keys and values of halfway through."""
    context = PROMPT + WARM_STEPS + STEPS // 2
    return itemsize * (num_read + batch * context * kv_token) / bandwidth


def decode(part: Part, run: EngineRun, batch: int, vocabulary: int, limit: float) -> dict[str, Any]:
    """Time steps in which all requests decode."""
    steps, warm = (6, 3) if part.is_dry else (STEPS, WARM_STEPS)
    prompt = 16 if part.is_dry else PROMPT
    jobs = [Job(torch.randint(vocabulary, (prompt,)).tolist(), warm + steps + 4) for _ in range(batch)]
    times: list[float] = []
    waits: list[float] = []

    def on_step(num_tokens: int) -> None:
        if num_tokens == batch:
            times.append(time.perf_counter())
            waits.append(run.waited_s)

    with counted_synchronisations(part) as synchronisations:
        run.run(jobs, on_step)
    times, waits = times[warm:], waits[warm:]
    step_s = (times[-1] - times[0]) / (len(times) - 1)
    waited_s = (waits[-1] - waits[0]) / (len(waits) - 1)
    return {
        "tokens/s": round(batch / step_s, 1),
        "ms a step": round(step_s * 1e3, 3),
        "of memory-bound limit": round(limit / step_s, 3),
        "host ms a step": round((step_s - waited_s) * 1e3, 3),
        "waits besides those for tokens": len(synchronisations),
    }


@contextmanager
def counted_synchronisations(part: Part) -> Iterator[list[warnings.WarningMessage]]:
    """Collect what torch says of calls in which the host waits for the device though nobody asked."""
    if part.torch_device.type != "cuda":
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield caught
        torch.cuda.set_sync_debug_mode("default")


def prefill(part: Part, run: EngineRun, vocabulary: int, operations: int, rate: float) -> dict[str, Any]:
    """Time long prompts that each give one token; products with weights alone are counted."""
    length = 64 if part.is_dry else PREFILL_TOKENS
    jobs = [Job(torch.randint(vocabulary, (length,)).tolist(), 1) for _ in range(PREFILL_PROMPTS)]
    run.run(jobs)
    jobs = [Job(torch.randint(vocabulary, (length,)).tolist(), 1) for _ in range(PREFILL_PROMPTS)]
    start = time.perf_counter()
    run.run(jobs)
    speed = length * PREFILL_PROMPTS / (time.perf_counter() - start)
    return {"tokens/s": round(speed), "of matrix rate": round(speed * operations / rate, 3)}


if __name__ == "__main__":
    main()
