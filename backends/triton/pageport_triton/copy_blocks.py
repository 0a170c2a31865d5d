"""``copy_blocks``: copy-on-write's primitive, in as few launches as the order of the pairs allows."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pageport_triton.compile_case import CompileCase, signature_of
from pageport_triton.configurations import Configuration, configuration_of
from pageport_triton.copy_blocks_kernel import copy_blocks_kernel
from pageport_triton.kv_pool import TritonKVPool

WORD_BYTES = 4
# Of a layer with 8 KV heads of 128 bfloat16 numbers and blocks of 16 tokens.
COMPILED_WORDS = 2 * 8 * 16 * 128 * 2 // WORD_BYTES


def copy_blocks(pool: TritonKVPool, pairs: Sequence[tuple[int, int]], configuration: Configuration) -> None:
    """Copy blocks as if one after the other: a block copied earlier in ``pairs`` is copied on with its new content."""
    copy = configuration.copy
    words = pool.memory.view(torch.int32)
    num_layers, _, layer_words = words.shape
    for launch in independent_runs(pairs):
        on_device = torch.tensor(launch, dtype=torch.int64, device=pool.memory.device)
        grid = (len(launch), num_layers, -(-layer_words // copy.words))
        copy_blocks_kernel[grid](
            memory_pointer=words,
            pairs_pointer=on_device,
            layer_stride=words.stride(0),
            **_constants(layer_words, copy.words),
            **copy.options,
        )


def independent_runs(pairs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Cut ``pairs`` where one reads or writes what another of the same run writes, or writes what another reads."""
    run: list[tuple[int, int]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, target in pairs:
        if source == target:
            continue
        if run and (source in written or target in written or target in read):
            yield run
            run, read, written = [], set(), set()
        run.append((source, target))
        read.add(source)
        written.add(target)
    if run:
        yield run


def _constants(layer_words: int, words: int) -> dict[str, Any]:
    return {"LAYER_WORDS": layer_words, "WORDS": words}


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the launch that the compile check covers."""
    copy = configuration_of(architecture).copy
    types = {"memory_pointer": "*i32", "pairs_pointer": "*i64", "layer_stride": "i64"}
    yield CompileCase(
        kernel=copy_blocks_kernel,
        signature=signature_of(copy_blocks_kernel, types),
        constexprs=_constants(COMPILED_WORDS, copy.words),
        options=copy.options,
        label="8 KV heads of 128 in bfloat16, block 16",
        aligned=tuple(types),
    )
