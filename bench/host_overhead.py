"""Host time of one engine step with a device that computes nothing.

    python bench/host_overhead.py [--requests 256] [--steps 400] [--no-prefix-caching]

Prints the median and the best milliseconds a step: scheduling, block accounting, committing and the outputs' messages;
then laying the batch out in the runner's buffers.
"""

import argparse
import statistics
import time

import torch

from pageport.cache.block_manager import BlockManager
from pageport.cache.layout import GroupLayout
from pageport.config import SchedulerConfig
from pageport.engine.engine import Engine
from pageport.engine.messages import EngineRequest
from pageport.engine.runner import PendingStep, Runner
from pageport.engine.step_buffers import StepBuffers
from pageport.sampling.params import SamplingParams
from pageport.scheduling.batch import Batch
from pageport.scheduling.scheduler import Scheduler
from pageport.testing.null_runner import NullRunner

MAX_MODEL_LEN = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()

    layouts = [GroupLayout(num_blocks=arguments.requests * 64, block_size=16)]
    config = SchedulerConfig(max_num_seqs=arguments.requests, max_num_batched_tokens=8192)
    blocks = BlockManager(layouts, enable_prefix_caching=arguments.prefix_caching, max_tokens_per_step=8192)
    scheduler = Scheduler(config, blocks, max_model_len=MAX_MODEL_LEN)
    runner = _TimedRunner(
        NullRunner(layouts, max_num_seqs=arguments.requests, verify=False), layouts, arguments.requests
    )
    engine = Engine(scheduler, runner, config, pipeline_depth=0)
    for i in range(arguments.requests):
        prompt = [(i * 7 + k) % 50000 for k in range(64 + i % 64)]
        params = SamplingParams(temperature=0, max_tokens=arguments.steps + 50, ignore_eos=True)
        engine.add(
            EngineRequest(
                request_id=str(i), prompt_token_ids=prompt, sampling=params, max_tokens=arguments.steps + 50, seed=i
            )
        )
    while scheduler.stats().num_waiting:
        engine.step()
    times, layout_times = [], []
    for _ in range(arguments.steps):
        runner.seconds = 0.0
        runner.layout_seconds = 0.0
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start - runner.seconds)
        layout_times.append(runner.layout_seconds)
    print(f"{scheduler.stats().num_running} running requests, {arguments.steps} steps")
    for name, values in (("schedule, commit, messages", times), ("batch layout", layout_times)):
        print(f"{name:28} median {statistics.median(values) * 1e3:.3f} ms, best {min(values) * 1e3:.3f} ms")


class _TimedRunner(Runner):
    """Lays each batch out as the model runner does, then lets the null runner pretend; keeps both times apart."""

    def __init__(self, inner: NullRunner, layouts: list[GroupLayout], num_rows: int) -> None:
        self.seconds = self.layout_seconds = 0.0
        self._inner = inner
        self._history = torch.zeros((num_rows, MAX_MODEL_LEN + 1), dtype=torch.int32)
        self._buffers = StepBuffers(
            layouts,
            max_num_seqs=num_rows,
            max_tokens=8192,
            max_model_len=MAX_MODEL_LEN,
            device=torch.device("cpu"),
            num_stages=1,
        )

    def submit(self, batch: Batch) -> PendingStep:
        start = time.perf_counter()
        self._buffers.update_tables(batch.block_updates)
        self._buffers.build(batch, self._history)
        self.layout_seconds = time.perf_counter() - start
        pending = self._inner.submit(batch)
        self.seconds = time.perf_counter() - start
        return pending


if __name__ == "__main__":
    main()
