"""Checks that the answers in ``Capabilities`` are possible ones and agree with each other."""

from collections.abc import Callable, Iterator, Mapping
from typing import get_args, get_type_hints

from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import KVSpec
from pageport.backend.op_table import OPTIONAL_OPS
from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES
from pageport.config import QUANTISATIONS
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.kv_rounding import EIGHT_BITS, FLOAT8, rotation_of_keys

KV_KINDS: tuple[str, ...] = get_args(get_type_hints(KVSpec)["kind"])
ATTENTION_VARIANTS = ("sliding_window", "softcap", "sinks", "alibi")
COMPUTE_DTYPES = ("float32", "bfloat16", "float16")
KV_DTYPES = (*COMPUTE_DTYPES, *EIGHT_BITS)
# Features besides ``op:<name>``; see ``Capabilities.features``.
OTHER_FEATURES = ("graph", "whole_model")


def capability_checks() -> Iterator[Check]:
    """Yield a check for each group of answers."""
    yield Check(Level.DISCOVERY, "discovery/capabilities/constant", check_constant)
    for name, run in CHECKS.items():
        yield Check(Level.DISCOVERY, f"discovery/capabilities/{name}", _with_capabilities(run))


def check_constant(context: Context) -> None:
    """Core asks more than once and plans by the first answer."""
    first, second = context.device.capabilities, context.device.capabilities
    assert isinstance(first, Capabilities), f"capabilities is {first!r}, no Capabilities."
    assert first == second, "capabilities changes from one reading to the next; it is fixed when the device is opened."


def check_dtypes(capabilities: Capabilities) -> None:
    """Names are torch's; the preferred one is among the computed ones."""
    _check_names("compute_dtypes", capabilities.compute_dtypes, COMPUTE_DTYPES)
    assert capabilities.preferred_dtype in capabilities.compute_dtypes, (
        f"preferred_dtype {capabilities.preferred_dtype!r} is not in compute_dtypes {capabilities.compute_dtypes}."
    )
    assert capabilities.preferred_kv_dtype in (None, *capabilities.kv_dtypes), (
        f"preferred_kv_dtype {capabilities.preferred_kv_dtype!r} is not in kv_dtypes {capabilities.kv_dtypes}."
    )
    assert capabilities.kv_dtypes, "kv_dtypes is empty: no cache could be allocated."
    _check_names("kv_dtypes", capabilities.kv_dtypes, KV_DTYPES)
    assert set(capabilities.kv_dtypes) & set(capabilities.compute_dtypes), (
        f"none of compute_dtypes {capabilities.compute_dtypes} is in kv_dtypes {capabilities.kv_dtypes}: "
        "the cache's default dtype, the one that is computed in, would always be refused."
    )


def check_cache(capabilities: Capabilities) -> None:
    """Sizes are positive, each named once; kinds are known."""
    assert capabilities.block_sizes, "block_sizes is empty: no cache could be allocated."
    _check_numbers("block_sizes", capabilities.block_sizes)
    _check_numbers("head_sizes", capabilities.head_sizes)
    _check_names("kv_kinds", capabilities.kv_kinds, KV_KINDS)


def check_attention(capabilities: Capabilities) -> None:
    """Variants are known ones, and windows have a kind of cache."""
    _check_names("attention_variants", capabilities.attention_variants, ATTENTION_VARIANTS, may_be_empty=True)
    if "sliding" in capabilities.kv_kinds:
        assert "sliding_window" in capabilities.attention_variants, (
            "kv_kinds has 'sliding', but attention_variants lacks 'sliding_window': nothing could use such a cache."
        )


def check_weights(capabilities: Capabilities) -> None:
    """Schemes that are kept are schemes a file may hold; quantisations are those a setting may name."""
    _check_names("weight_schemes", capabilities.weight_schemes, (*PLAIN_SCHEMES, *BLOCK_SCHEMES), may_be_empty=True)
    _check_names("quantisations", capabilities.quantisations, QUANTISATIONS, may_be_empty=True)
    if capabilities.quantisations:
        assert "int8" in capabilities.quantisations, (
            "quantisations lacks 'int8', in which an embedding and an output head are kept under any of them."
        )
    keeps_blocks = set(capabilities.weight_schemes) & set(BLOCK_SCHEMES) or capabilities.quantisations
    assert keeps_blocks or not capabilities.quantises_activations, (
        "quantises_activations is declared, but no block scheme is kept and no quantisation done: "
        "with plain numbers activations are not rounded."
    )


def check_batches(capabilities: Capabilities) -> None:
    """Bounds on a step are possible ones; static shapes have buckets."""
    assert capabilities.max_decode_query_len >= 1, (
        f"max_decode_query_len is {capabilities.max_decode_query_len}; a decode row has at least one query."
    )
    assert capabilities.step_tokens is None or capabilities.step_tokens >= 1, (
        f"step_tokens is {capabilities.step_tokens}; a step computes at least one token. None leaves it to core."
    )
    assert capabilities.pipeline_depth >= 0, f"pipeline_depth is {capabilities.pipeline_depth}; 0 means none."
    for name in ("token_buckets", "request_buckets"):
        buckets = getattr(capabilities, name)
        _check_numbers(name, buckets)
        assert list(buckets) == sorted(buckets), f"{name} is {buckets}; name them in ascending order."
        assert buckets or not capabilities.static_shapes, f"static_shapes is declared, but {name} is empty."
    contexts = capabilities.context_buckets
    _check_numbers("context_buckets", contexts)
    assert list(contexts) == sorted(contexts), f"context_buckets is {contexts}; name them in ascending order."
    _check_numbers("graph_sizes", capabilities.graph_sizes)
    assert list(capabilities.graph_sizes) == sorted(capabilities.graph_sizes), (
        f"graph_sizes is {capabilities.graph_sizes}; name them in ascending order."
    )
    assert capabilities.determinism in ("none", "run", "batch"), (
        f"determinism is {capabilities.determinism!r}; use none, run or batch."
    )


def check_features(capabilities: Capabilities) -> None:
    """Features are known ones with a positive version."""
    rotatable = [rotation_of_keys(dtype) for dtype in capabilities.kv_dtypes if dtype in FLOAT8]
    known = (*(f"op:{name}" for name in OPTIONAL_OPS), *rotatable, *OTHER_FEATURES)
    _check_names("features", tuple(capabilities.features), known, may_be_empty=True)
    for name, version in capabilities.features.items():
        assert type(version) is int and version >= 1, f"feature {name} has the version {version!r}; they start at 1."


CHECKS: Mapping[str, Callable[[Capabilities], None]] = {
    "dtypes": check_dtypes,
    "cache": check_cache,
    "attention": check_attention,
    "weights": check_weights,
    "batches": check_batches,
    "features": check_features,
}


def _with_capabilities(run: Callable[[Capabilities], None]) -> Callable[[Context], None]:
    def check(context: Context) -> None:
        run(context.capabilities)

    return check


def _check_names(field: str, names: tuple[str, ...], known: tuple[str, ...], may_be_empty: bool = False) -> None:
    assert names or may_be_empty, f"{field} is empty; name at least one of {', '.join(known)}."
    unknown = [name for name in names if name not in known]
    assert not unknown, f"{field} holds {unknown[0]!r}, which this pageport does not know: {', '.join(known)}."
    assert len(set(names)) == len(names), f"{field} names something twice: {names}."


def _check_numbers(field: str, numbers: tuple[int, ...]) -> None:
    wrong = [number for number in numbers if type(number) is not int or number < 1]
    assert not wrong, f"{field} holds {wrong[0]!r}; it takes positive whole numbers."
    assert len(set(numbers)) == len(numbers), f"{field} names a size twice: {numbers}."
