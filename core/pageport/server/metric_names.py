"""What ``/metrics`` shows, declared once: names, meanings, and the names that vLLM has for the same numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from pageport.engine.messages import EngineStats

OWN_PREFIX = "pageport:"
VLLM_PREFIX = "vllm:"

# Seconds. From one step of a small model to a long queue.
REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
CHOICES = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class MetricName:
    """A metric as it is called here and, where vLLM has it too, there; counters without ``_total``."""

    own: str
    meaning: str
    vllm: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineMetric(MetricName):
    """One number of ``EngineStats``."""

    read: Callable[[EngineStats], float] = field(kw_only=True)


@dataclass(frozen=True)
class HistogramName(MetricName):
    """A distribution over requests, choices or tokens."""

    buckets: tuple[float, ...] = REQUEST_SECONDS


GAUGES = (
    EngineMetric(
        "requests_running",
        "Sequences in the running batch.",
        ("num_requests_running",),
        read=attrgetter("num_running"),
    ),
    EngineMetric(
        "requests_waiting", "Sequences that wait to run.", ("num_requests_waiting",), read=attrgetter("num_waiting")
    ),
    EngineMetric("kv_blocks", "Blocks of the KV cache, all groups.", read=attrgetter("kv_blocks_total")),
    EngineMetric("kv_blocks_used", "Blocks that requests hold.", read=attrgetter("kv_blocks_used")),
    EngineMetric(
        "kv_cache_usage_ratio",
        "Share of the KV cache's blocks that requests hold; 1 is all.",
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        read=lambda stats: stats.kv_blocks_used / max(1, stats.kv_blocks_total),
    ),
)
COUNTERS = (
    EngineMetric("steps", "Engine steps.", read=attrgetter("steps_total")),
    EngineMetric(
        "prompt_tokens",
        "Prompt tokens of admitted requests, each prompt counted once.",
        ("prompt_tokens",),
        read=attrgetter("prompt_tokens_total"),
    ),
    EngineMetric(
        "computed_tokens",
        "Tokens that went through the model, recomputation included.",
        read=attrgetter("computed_tokens_total"),
    ),
    EngineMetric(
        "generation_tokens", "Tokens generated.", ("generation_tokens",), read=attrgetter("generation_tokens_total")
    ),
    EngineMetric(
        "prefix_query_tokens",
        "Prompt tokens looked up in the prefix cache.",
        ("prefix_cache_queries", "gpu_prefix_cache_queries"),
        read=attrgetter("prefix_query_tokens_total"),
    ),
    EngineMetric(
        "prefix_hit_tokens",
        "Prompt tokens found in the prefix cache.",
        ("prefix_cache_hits", "gpu_prefix_cache_hits"),
        read=attrgetter("prefix_hit_tokens_total"),
    ),
    EngineMetric(
        "preemptions",
        "Times a running sequence lost its place.",
        ("num_preemptions",),
        read=attrgetter("preemptions_total"),
    ),
    EngineMetric("swapped_out_blocks", "Blocks moved to host memory.", read=attrgetter("swapped_out_blocks_total")),
    EngineMetric("copied_blocks", "Blocks copied on write.", read=attrgetter("copied_blocks_total")),
)
KV_WASTE = MetricName("kv_waste_ratio", "Share of allocated KV slots that hold no token, mean over steps.")
FINISHED = MetricName("requests_finished", "Choices that ended, by reason.", ("request_success",))
SERVED = MetricName("served_info", "Always 1; the labels say what is served, and on what.")
CACHE = MetricName("cache_info", "Always 1; the labels say how the KV cache is cut.", ("cache_config_info",))
HTTP_RESPONSES = MetricName("http_responses", "Answers by route and status; refused requests are counted here only.")
# Labels that have another name there.
VLLM_LABELS = {"reason": "finished_reason", "num_blocks": "num_gpu_blocks"}

TIME_TO_FIRST_TOKEN = HistogramName(
    "time_to_first_token_seconds",
    "From the parsed request to a choice's first token.",
    ("time_to_first_token_seconds",),
)
INTER_TOKEN_LATENCY = HistogramName(
    "inter_token_latency_seconds",
    "Between two tokens of a choice; tokens that arrive together share the time.",
    ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    TOKEN_SECONDS,
)
# The others are of requests that were not broken off; one with several prompts counts once.
REQUEST_LATENCY = HistogramName(
    "e2e_request_latency_seconds",
    "From a request's arrival to the end of its answer.",
    ("e2e_request_latency_seconds",),
)
QUEUE_TIME = HistogramName(
    "queue_time_seconds", "From the engine's taking of a request to its first step.", ("request_queue_time_seconds",)
)
PREFILL_TIME = HistogramName(
    "prefill_time_seconds", "From a request's first step to its first token.", ("request_prefill_time_seconds",)
)
DECODE_TIME = HistogramName(
    "decode_time_seconds", "From a request's first token to its last.", ("request_decode_time_seconds",)
)
INFERENCE_TIME = HistogramName(
    "inference_time_seconds", "From a request's first step to its last token.", ("request_inference_time_seconds",)
)
TIME_PER_OUTPUT_TOKEN = HistogramName(
    "time_per_output_token_seconds",
    "Time from a request's first token to its last, by the tokens of its longest choice after the first.",
    ("request_time_per_output_token_seconds",),
    TOKEN_SECONDS,
)
PROMPT_LENGTH = HistogramName(
    "request_prompt_tokens", "Prompt tokens of a request.", ("request_prompt_tokens",), TOKENS
)
GENERATION_LENGTH = HistogramName(
    "request_generation_tokens", "Tokens generated for a request.", ("request_generation_tokens",), TOKENS
)
LONGEST_CHOICE = HistogramName(
    "request_max_choice_tokens",
    "Tokens of a request's longest choice.",
    ("request_max_num_generation_tokens",),
    TOKENS,
)
NUM_CHOICES = HistogramName("request_choices", "Choices per prompt (n).", ("request_params_n",), CHOICES)
MAX_TOKENS = HistogramName(
    "request_max_tokens", "Most tokens that a choice was allowed.", ("request_params_max_tokens",), TOKENS
)
HISTOGRAMS = (
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    REQUEST_LATENCY,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    INFERENCE_TIME,
    TIME_PER_OUTPUT_TOKEN,
    PROMPT_LENGTH,
    GENERATION_LENGTH,
    LONGEST_CHOICE,
    NUM_CHOICES,
    MAX_TOKENS,
)
