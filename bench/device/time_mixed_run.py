"""Part: prompts and answers of mixed lengths, by pageport and by transformers in one process, in output tokens/s."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from engine_run import EngineRun, Job
from part import Part
from random_model import random_llama
from transformers import ContinuousBatchingConfig, GenerationConfig

NUM_JOBS = 128
# How many of the jobs each way to generate gets, so that each has its share of the time.
ONE_BY_ONE, STATIC, CONTINUOUS = 4, 32, 64


def main() -> None:
    with Part("time_mixed_run") as part:
        model = random_llama(part)
        jobs = mixed_jobs(model.config.vocab_size, 4 if part.is_dry else NUM_JOBS, 8 if part.is_dry else 256)
        settings = {
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": 2048,
            "max_num_seqs": 256,
            "strict_ops": True,
            "num_kv_blocks": 512 if part.is_dry else 16384,
        }
        with EngineRun(model, part.backend, **settings) as run:
            run.run(jobs)  # graphs are captured, kernels compiled
            run.run([Job(job.prompt[::-1], job.num_tokens) for job in jobs])
            fresh = [Job([token ^ 1 for token in job.prompt], job.num_tokens) for job in jobs]
            ours = part.results["pageport"] = rate(part, fresh, lambda: run.run(fresh))
            part.add("pageport", ours)
        ways: dict[str, tuple[int, Callable[[Any, Sequence[Job]], object]]] = {
            "transformers, one by one": (ONE_BY_ONE, one_by_one),
            "transformers, static batch": (STATIC, static_batch),
            "transformers, continuous batching": (CONTINUOUS, continuous_batching),
        }
        for name, (count, generate) in ways.items():
            some = jobs[: min(count, len(jobs))]
            try:
                generate(model, some if generate is continuous_batching else [Job(job.prompt, 4) for job in some[:2]])
                theirs = rate(part, some, lambda generate=generate, some=some: generate(model, some))
                part.add(name, {"tokens/s": theirs, "pageport is faster by": round(ours / theirs, 2)})
            except Exception as error:  # another library's failure is a result
                part.add(name, f"{type(error).__name__}: {str(error)[:200]}")


def mixed_jobs(vocabulary: int, count: int, longest: int) -> list[Job]:
    """Return prompts of up to twice ``longest`` tokens and answers of up to ``longest``, the same in every run."""
    generator = random.Random(11)
    return [
        Job(
            [generator.randrange(4, vocabulary) for _ in range(generator.randint(longest // 8, 2 * longest))],
            generator.randint(max(2, longest // 16), longest),
        )
        for _ in range(count)
    ]


def rate(part: Part, jobs: Sequence[Job], run: Callable[[], object]) -> float:
    """Return wanted output tokens a second."""
    part.synchronize()
    start = time.perf_counter()
    run()
    part.synchronize()
    return round(sum(job.num_tokens for job in jobs) / (time.perf_counter() - start), 1)


def exactly(count: int) -> GenerationConfig:
    return GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )


@torch.inference_mode()
def one_by_one(model: Any, jobs: Sequence[Job]) -> None:
    for job in jobs:
        prompt = torch.tensor([job.prompt], device=model.device)
        model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=exactly(job.num_tokens))


@torch.inference_mode()
def static_batch(model: Any, jobs: Sequence[Job]) -> None:
    """Pad prompts on the left, and go on until the longest answer is done."""
    width = max(len(job.prompt) for job in jobs)
    padded = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs], device=model.device)
    lengths = torch.tensor([len(job.prompt) for job in jobs], device=model.device)
    mask = (torch.arange(width, device=model.device) >= width - lengths[:, None]).long()
    model.generate(padded, attention_mask=mask, generation_config=exactly(max(job.num_tokens for job in jobs)))


@torch.inference_mode()
def continuous_batching(model: Any, jobs: Sequence[Job]) -> None:
    """Let transformers schedule; all its answers are of one length, the mean of what is wanted.

    Its manager stays, so that what it prepares before the first answer is in the call before.
    """
    mean = round(sum(job.num_tokens for job in jobs) / len(jobs))
    # On a device its own choice; a processor's memory it would fill.
    small = ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=64)
    outputs = model.generate_batch(
        [job.prompt for job in jobs],
        generation_config=exactly(mean),
        continuous_batching_config=small if model.device.type == "cpu" else None,
        persistent_manager=True,
    )
    if len(outputs) != len(jobs):
        raise RuntimeError(f"{len(outputs)} of {len(jobs)} requests came back")


if __name__ == "__main__":
    main()
