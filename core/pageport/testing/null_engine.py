"""``python -m pageport.testing.null_engine FD``: an engine process whose device computes nothing.

Everything but the device is the real thing: scheduler, block manager, messages. ``NullRunner`` waits and says one token
again and again.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pageport.cache.block_manager import BlockManager
from pageport.cache.layout import GroupLayout
from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.engine import Engine
from pageport.engine.messages import EngineInfo
from pageport.engine.process import main
from pageport.scheduling.scheduler import Scheduler
from pageport.testing.null_runner import NullRunner

MAX_MODEL_LEN = 4096
VOCAB_SIZE = 1 << 17  # at least that of any tokenizer


@dataclass(frozen=True, kw_only=True)
class NullBuilt:
    """An engine without a device."""

    engine: Engine
    info: EngineInfo

    def close(self) -> None:
        self.engine.close()


class NullAsyncEngine(AsyncEngine):
    """``AsyncEngine`` with this process as its engine."""

    process_module = "pageport.testing.null_engine"


def null_config(model: str, *, token_id: int, latency_s: float = 0.0, **settings: Any) -> EngineConfig:
    """Return settings for a null engine that has the tokenizer of ``model``.

    Args:
        token_id: what it says.
        latency_s: how long a step takes.
        settings: as of any engine.
    """
    options = (f"token_id={token_id}", f"latency_s={latency_s}")
    return EngineConfig.from_flat(model=model, backend_options=options, **settings)


def build_null_engine(config: EngineConfig, progress: Callable[[int, int], None]) -> NullBuilt:
    """Build from what ``null_config`` returned; there is nothing to load."""
    options = dict(pair.split("=", 1) for pair in config.backend.backend_options)
    scheduling, cache = config.scheduler, config.cache
    num_blocks = cache.num_kv_blocks or scheduling.max_num_seqs * (MAX_MODEL_LEN // cache.block_size)
    layouts = [GroupLayout(num_blocks=num_blocks, block_size=cache.block_size)]
    blocks = BlockManager(
        layouts, enable_prefix_caching=cache.enable_prefix_caching, max_tokens_per_step=scheduling.step_tokens
    )
    runner = NullRunner(
        layouts,
        max_num_seqs=scheduling.max_num_seqs,
        vocab_size=VOCAB_SIZE,
        latency_s=float(options["latency_s"]),
        verify=False,
        token_id=int(options["token_id"]),
    )
    scheduler = Scheduler(scheduling, blocks, max_model_len=MAX_MODEL_LEN)
    info = EngineInfo(
        model_name=config.model.served_model_name or config.model.model,
        architecture="none",
        vocab_size=VOCAB_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_request_tokens=blocks.max_sequence_tokens,
        max_num_seqs=scheduling.max_num_seqs,
        block_size=cache.block_size,
        num_blocks=(num_blocks,),
        eos_token_ids=frozenset(),
        dtype="none",
        backend="null",
    )
    return NullBuilt(engine=Engine(scheduler, runner, scheduling, pipeline_depth=0), info=info)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), build_null_engine))
