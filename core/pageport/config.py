"""Every setting, declared once: the CLI, ``LLM(...)`` and the docs are made from these.

Each field's metadata holds ``help`` (with the unit and the reason for the default) and, where vLLM spells a flag
differently, ``aliases``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from pageport.errors import ConfigurationError

# What `--quantization` and `--kv-cache-dtype` take.
Quantisation = Literal["int8", "int4"]
QUANTISATIONS: tuple[Quantisation, ...] = get_args(Quantisation)
# Tokens one step may compute where neither the user nor the backend says.
DEFAULT_STEP_TOKENS = 2048
KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8")


def setting(default: Any, help: str, *aliases: str) -> Any:  # noqa: A002 - the metadata key is called help
    """Declare one field of a configuration."""
    return field(default=default, metadata={"help": help, "aliases": aliases})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded."""

    model: str = setting("smollm2", "Folder, .gguf file, hub id, or a packaged model's name (pageport models).")
    tokenizer: str | None = setting(None, "Folder or file of the tokenizer; default: the model's own.")
    revision: str | None = setting(None, "Branch, tag or commit on the hub; default: main.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "Compute dtype. auto: the checkpoint's where the backend is good at it, and a GGUF's own format where the "
        "backend keeps it; float32: dequantised weights and float32 arithmetic.",
    )
    quantization: str | None = setting(
        None,
        "int8 or int4: quantise any checkpoint's matrices while loading, embedding and output head to int8 under both; "
        "--dtype is then that of activations, norms and biases. Default: weights as stored, or as --dtype says.",
        "-q",
    )
    max_model_len: int | None = setting(None, "Longest prompt plus output, in tokens; default: what the model allows.")
    served_model_name: str | None = setting(None, "Name clients use; default: the model as given.")
    allow_pickle: bool = setting(
        False, "Read pytorch_model.bin with weights_only; off, since safetensors are safer and faster."
    )


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The KV cache."""

    block_size: int = setting(16, "Tokens a block; 16 wastes under 4 % and is what kernels are tuned for.")
    gpu_memory_utilization: float = setting(
        0.9, "Share of the device's free memory for the KV cache, at most what max-num-seqs full contexts need."
    )
    num_kv_blocks: int | None = setting(
        None, "Blocks of the full-attention cache; default: from free memory.", "--num-gpu-blocks-override"
    )
    kv_cache_dtype: str = setting(
        "auto",
        "auto (what the backend prefers where --dtype is auto too, else the compute dtype), float32, bfloat16 or bf16, "
        "float16 or fp16, fp8_e4m3 or fp8, fp8_e5m2, int8 (a scale for each token and head). A byte a number holds "
        "twice the tokens of 16 bits; fp8_e5m2 rounds most.",
    )
    enable_prefix_caching: bool = setting(True, "Reuse cached blocks of equal prefixes.")
    swap_space: float = setting(0.0, "GiB of host memory for preempted requests; 0: they are recomputed.")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What runs when."""

    max_num_seqs: int = setting(256, "Sequences running at once; each holds a row of buffers.")
    max_num_batched_tokens: int | None = setting(
        None,
        "Tokens one step may compute; larger is better throughput, smaller is steadier time between tokens. Default: "
        "what the backend computes at full speed.",
    )
    max_step_time_ms: float | None = setting(
        None, "Shrink prefill chunks so that a step with running decodes stays near this time; default: no bound."
    )
    scheduling_policy: Literal["fcfs", "priority"] = setting("fcfs", "fcfs: by arrival; priority: lower value first.")
    max_queued_requests: int = setting(4096, "More waiting requests than this are refused with 503.")
    request_timeout: float | None = setting(None, "Seconds after which a request ends as timed out; default: never.")

    @property
    def step_tokens(self) -> int:
        """Tokens one step may compute."""
        return self.max_num_batched_tokens or DEFAULT_STEP_TOKENS


@dataclass(frozen=True, kw_only=True)
class BackendConfig:
    """Where it runs."""

    backend: str = setting("auto", "Backend name (pageport backends), or auto: the best that has a device.")
    device: int = setting(0, "Ordinal of the device.")
    backend_options: tuple[str, ...] = setting((), "key=value for the backend; may be repeated.", "--backend-option")
    strict_ops: bool = setting(False, "Refuse to start when a hot op would fall back to the reference.")
    enforce_eager: bool = setting(
        False, "Run every step op by op, also where the backend can replay captured ones; for finding faults."
    )
    pipeline_depth: int | None = setting(
        None, "Steps in flight while the host schedules the next; default: what the backend declares."
    )
    seed: int = setting(0, "Seeds of requests that bring none are drawn from this.")


# The fields of ``EngineConfig``.
GROUPS: Mapping[str, type[Any]] = MappingProxyType(
    {"model": ModelConfig, "cache": CacheConfig, "scheduler": SchedulerConfig, "backend": BackendConfig}
)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All of the above."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)

    @classmethod
    def from_flat(cls, **settings: Any) -> "EngineConfig":
        """Build from field names without their group, as ``LLM`` and the CLI pass them.

        Raises:
            ConfigurationError: an unknown name.
        """
        groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        homes = {f.name: group for group, kind in GROUPS.items() for f in fields(kind)}
        for name, value in settings.items():
            if name not in homes:
                raise ConfigurationError(f"Unknown setting {name!r}. Known: {', '.join(sorted(homes))}.")
            groups[homes[name]][name] = value
        return cls(**{group: kind(**groups[group]) for group, kind in GROUPS.items()})
