"""What launches of both attention kernels have in common, and the cases in which they are compiled without one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.kv import AttentionParams, KVSpec
from pageport_triton.compile_case import CompileCase, signature_of
from pageport_triton.configurations import Configuration, Factors, HeadClass
from pageport_triton.kv_pool import TritonKVPool

# Smaller heads are padded to this many features.
LEAST_HEAD_TILE = 32
EIGHT_BITS = ("int8", "float8_e4m3fn", "float8_e5m2")

Arguments = dict[str, Any]


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()


def head_tile(size: int) -> int:
    """Return the features that a program holds for heads of ``size``."""
    return max(LEAST_HEAD_TILE, power_of_two(size))


def head_chunk(spec: KVSpec, wanted: int | None) -> int:
    """Return the features multiplied at a time: ``wanted``, and at most those of a head."""
    tile = head_tile(spec.head_size)
    return tile if wanted is None else min(wanted, tile)


def head_class(spec: KVSpec, query_dtype: torch.dtype) -> HeadClass:
    """Return what decides about tiles."""
    factors: Factors = "narrow"
    if query_dtype.itemsize == torch.float32.itemsize:
        factors = "wide"
    elif spec.dtype in EIGHT_BITS:
        factors = "dequantised"
    return HeadClass(head_tile(max(spec.head_size, spec.value_head_size)), factors)


def tensor_arguments(
    pool: TritonKVPool, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
) -> Arguments:
    """Return the tensors of one call, their strides, and what ``params`` says."""
    storage = pool.layers[layer]
    return {
        "query_pointer": query,
        "out_pointer": out,
        "key_pointer": storage.key,
        "value_pointer": storage.value,
        "key_scale_pointer": storage.key_scale,
        "value_scale_pointer": storage.value_scale,
        "table_pointer": batch.block_table,
        "lengths_pointer": batch.seq_lens,
        "starts_pointer": batch.query_start_loc,
        "sinks_pointer": params.sinks,
        "slopes_pointer": params.alibi,
        "k_scale_pointer": params.k_scale,
        "v_scale_pointer": params.v_scale,
        "query_token_stride": query.stride(0),
        "query_head_stride": query.stride(1),
        "out_token_stride": out.stride(0),
        "out_head_stride": out.stride(1),
        "table_stride": batch.block_table.stride(0),
        "block_stride": pool.block_stride,
        "scale_block_stride": pool.scale_block_stride,
        "scale": float(params.scale),
        "softcap": params.softcap,
        "window": params.sliding_window,
    }


def shape_constants(spec: KVSpec, group: int, configuration: Configuration, *, is_interpreted: bool) -> Arguments:
    """Return the compile-time constants that the cache group decides.

    Args:
        group: query heads for each KV head.
    """
    return {
        "KV_HEADS": spec.num_kv_heads,
        "GROUP": group,
        "BLOCK_SIZE": spec.block_size,
        "HEAD_SIZE": spec.head_size,
        "HEAD_TILE": head_tile(spec.head_size),
        "VALUE_SIZE": spec.value_head_size,
        "VALUE_TILE": head_tile(spec.value_head_size),
        "STORED": spec.dtype,
        "HAS_FLOAT8": configuration.has_float8,
        "PRECISION": configuration.float32_product,
        "IS_INTERPRETED": is_interpreted,
    }


@dataclass(frozen=True, kw_only=True)
class AttentionVariant:
    """One layer's attention as the compile check asks for it."""

    head_size: int
    value_head_size: int
    dtype: str
    stored: str
    group: int
    block_size: int
    window: bool
    softcap: bool
    sinks: bool
    alibi: bool
    causal: bool

    @property
    def head_class(self) -> HeadClass:
        return head_class(self.spec, getattr(torch, self.dtype))

    @property
    def spec(self) -> KVSpec:
        return KVSpec(
            num_layers=1,
            num_kv_heads=8,
            head_size=self.head_size,
            value_head_size=self.value_head_size,
            block_size=self.block_size,
            dtype=self.stored,
        )

    @property
    def label(self) -> str:
        size = (
            f"{self.head_size}"
            if self.head_size == self.value_head_size
            else f"{self.head_size}/{self.value_head_size}"
        )
        flags = [name for name in ("window", "softcap", "sinks", "alibi") if getattr(self, name)]
        flags += [] if self.causal else ["not causal"]
        return " ".join(
            [
                f"{self.dtype} over {self.stored}",
                f"head {size}",
                f"group {self.group}",
                f"block {self.block_size}",
                *flags,
            ]
        )


TYPE_NAMES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int8": "i8",
    "float8_e4m3fn": "u8",
    "float8_e5m2": "u8",
}


def tensor_types(variant: AttentionVariant) -> Mapping[str, str]:
    """Return the types of ``tensor_arguments``; absent ones are left out."""
    compute, stored = f"*{TYPE_NAMES[variant.dtype]}", f"*{TYPE_NAMES[variant.stored]}"
    types = dict.fromkeys(("query_pointer", "out_pointer"), compute) | dict.fromkeys(
        ("key_pointer", "value_pointer"), stored
    )
    types |= dict.fromkeys(("table_pointer", "lengths_pointer", "starts_pointer"), "*i32")
    if variant.stored == "int8":
        types |= dict.fromkeys(("key_scale_pointer", "value_scale_pointer"), "*fp32")
    if variant.stored.startswith("float8"):
        types |= dict.fromkeys(("k_scale_pointer", "v_scale_pointer"), "*fp32")
    for is_there, name in ((variant.sinks, "sinks_pointer"), (variant.alibi, "slopes_pointer")):
        types |= {name: "*fp32"} if is_there else {}
    strides = ("query_token_stride", "query_head_stride", "out_token_stride", "out_head_stride", "table_stride")
    types |= dict.fromkeys((*strides, "block_stride", "scale_block_stride"), "i32")
    types |= {"scale": "fp32"}
    types |= {"softcap": "fp32"} if variant.softcap else {}
    types |= {"window": "i32"} if variant.window else {}
    return types


# Parameters that may have any value; a launch finds all others to be divisible by 16.
UNALIGNED = frozenset(
    (
        *("scale", "softcap", "window", "table_stride", "first_request", "num_requests", "num_splits"),
        *("num_rows", "num_query_rows", "num_query_programs"),
    )
)


def has_matrix_product(variant: AttentionVariant, configuration: Configuration) -> bool:
    """Return whether matrix instructions are expected of an attention kernel."""
    return variant.head_class.factors != "wide" or configuration.has_float32_product


def attention_case(
    kernel: Any,
    variant: AttentionVariant,
    types: Mapping[str, str],
    constants: Arguments,
    options: Mapping[str, int],
    *,
    expects_matrix_product: bool = False,
) -> CompileCase:
    """Return a launch of ``kernel``, which takes some of the typed parameters and has others that are absent."""
    known = {name: types[name] for name in kernel.arg_names if name in types}
    absent = dict.fromkeys(name for name in kernel.arg_names if name not in types)
    return CompileCase(
        kernel=kernel,
        signature=signature_of(kernel, known),
        constexprs=absent | constants,
        options=options,
        label=variant.label,
        aligned=tuple(name for name in known if name not in UNALIGNED),
        has_matrix_product=expects_matrix_product,
    )


def variants() -> Iterator[AttentionVariant]:
    """Yield variants so that each head size meets each pair of dtypes, and the other features take turns."""
    pairs = [
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("bfloat16", "float8_e4m3fn"),
        ("bfloat16", "int8"),
        ("float16", "float8_e5m2"),
    ]
    for row, head_size in enumerate((32, 64, 80, 96, 128, 192, 256)):
        for column, (dtype, stored) in enumerate(pairs):
            turn = row + column
            yield AttentionVariant(
                head_size=head_size,
                value_head_size=128 if head_size == 192 else head_size,
                dtype=dtype,
                stored=stored,
                group=(1, 4, 8, 6, 64)[turn % 5],
                block_size=(16, 32, 64, 128, 256)[(2 * row + column) % 5],
                window=turn % 3 == 1,
                softcap=turn % 4 == 2,
                sinks=turn % 5 == 3,
                alibi=turn % 7 == 4,
                causal=turn % 6 != 5,
            )
