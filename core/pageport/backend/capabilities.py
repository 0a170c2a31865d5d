"""What a device can do, asked as questions, with the cautious answer as the default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Core plans by these answers and never by who the vendor is."""

    # In which dtypes can it compute? Names as in torch: "float32", "bfloat16", "float16".
    compute_dtypes: tuple[str, ...] = ("float32",)
    # Which of these does `--dtype auto` choose for a checkpoint stored in bfloat16 or float16?
    preferred_dtype: str = "float32"
    # In which dtypes can it keep keys and values? Besides those it computes in: "float8_e4m3fn", "float8_e5m2", "int8".
    kv_dtypes: tuple[str, ...] = ("float32",)
    # In which of these does it keep them best, when neither their dtype nor the compute dtype is asked for? None: in
    # the compute dtype.
    preferred_kv_dtype: str | None = None
    # Which stored weight schemes does it keep in their own format? The rest is dequantised while loading.
    weight_schemes: tuple[str, ...] = ()
    # Which on-load quantisations of any checkpoint does it do: "int8", "int4"?
    quantisations: tuple[str, ...] = ()
    # Does multiplying by block-quantised weights round activations too, to 8 bits? Start-up then says so.
    quantises_activations: bool = False
    # How many tokens may a cache block hold?
    block_sizes: tuple[int, ...] = (16,)
    # Which head sizes do its attention kernels take? Empty: any.
    head_sizes: tuple[int, ...] = ()
    # Which kinds of cache group does it allocate?
    kv_kinds: tuple[str, ...] = ("full",)
    # Which attention variants does it compute: "sliding_window", "softcap", "sinks", "alibi"?
    attention_variants: tuple[str, ...] = ()
    # Can one step hold prefill chunks and decodes together?
    mixed_batches: bool = True
    # How many tokens should a step compute, when nobody says: enough for full speed, and not more? None: core's choice.
    step_tokens: int | None = None
    # Must decodes come before prefills in a batch?
    decode_first: bool = False
    # With `decode_first`: how many queries may a decode row have?
    max_decode_query_len: int = 1
    # Are whole models compiled ahead of time, a shape at a time? Core then runs what `Device.build_model` returns,
    # never mixes prompts with decodes in one step, and fills each up to the smallest of these shapes that holds it.
    static_shapes: bool = False
    # With `static_shapes`: how many tokens of one prompt may a step have, and how many decodes? Ascending; longer
    # prompts and more decodes take several steps.
    token_buckets: tuple[int, ...] = ()
    request_buckets: tuple[int, ...] = ()
    # How many tokens may a step's contexts span? Ascending; a longer context is refused. Empty: one size, the longest
    # context that is served.
    context_buckets: tuple[int, ...] = ()
    # Are results bitwise equal: never promised, from run to run, or whatever else is in the batch?
    determinism: Literal["none", "run", "batch"] = "none"
    # With the feature `graph`: for which numbers of requests should decode steps be captured, in ascending order? A
    # step is filled up to the next one with padding rows. Behind the last one, and when empty: each number for itself.
    graph_sizes: tuple[int, ...] = ()
    # With the feature `graph`: can a graph be resized (`Graph.resize`)? One then serves all decodes, and one all steps
    # with prompts; they read nothing of what `plan` leaves.
    graphs_resize: bool = False
    # How many steps may be in flight before the host waits for a result?
    pipeline_depth: int = 0
    # Name of the torch.distributed backend for collectives, if any.
    collective_backend: str | None = None
    # Optional features with their versions: "op:rms_norm": 1, "graph": 1, "whole_model": 1, and, as `KVSpec` says,
    # "rotated_keys:float8_e5m2": 1, …
    features: Mapping[str, int] = field(default_factory=dict)
