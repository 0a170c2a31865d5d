"""The CPU backend's kernels as shares of this machine's peaks: products of 64 rows and of one, and decode attention.

    python bench/cpu_kernels.py [--threads 1,2] [--seconds 0.5] [--only q4_1,attention,…]

Peaks are those of ``roofline.py`` in the same process; of a kernel the best of its runs counts. What memory gives moves
with the host's other machines, so reads are measured again before and after each format's kernels. Products of 64 rows
repeat one matrix, which stays in the caches; a run of products of one row, and of attention, reads more than the caches
hold.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from roofline import Kind, Peak, default_thread_counts, measure_peaks
from table import markdown
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES, WeightSpec
from pageport.engine.step_buffers import NO_MIRROR
from pageport.testing.conformance.stored_matrix import random_matrix, stored_matrix
from pageport_cpu.attention import attention
from pageport_cpu.float_weight import FloatWeight
from pageport_cpu.kv_pool import KV_DTYPES, allocate_kv, bytes_per_block, write_kv
from pageport_cpu.library import Library, load_library
from pageport_cpu.quantised_weight import QuantisedWeight
from pageport_cpu.weight_memory import WeightMemory
from pageport_cpu.weights import prepare_weight

Matrix = FloatWeight | QuantisedWeight
# Both of a small model; a multiple of the largest blocks.
OUT_FEATURES, IN_FEATURES = 3072, 768
MANY_ROWS = 64
# Far more than the last cache holds.
READ_BYTES = 256 * 2**20
# Decodes, and the attention that SmolLM2 has.
SEQUENCES, CONTEXT, BLOCK_SIZE, HEADS, KV_HEADS, HEAD_SIZE = 64, 512, 16, 9, 3, 64


@dataclass(frozen=True)
class Measure:
    """What one kernel reached, in thousand millions a second."""

    kernel: str
    threads: int
    value: float
    kind: Kind  # of the peak that bounds it

    def row(self, peaks: Sequence[Peak]) -> list[str]:
        peak = max(peak.value for peak in peaks if peak.kind == self.kind)
        return [self.kernel, str(self.threads), f"{self.value:.3g}", f"{peak:.3g}", f"{100 * self.value / peak:.0f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", help="comma-separated; default: 1 and all cores")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each kernel")
    parser.add_argument("--only", help="formats of weights, attention, separated by commas; default: all")
    arguments = parser.parse_args()
    counts = [int(n) for n in arguments.threads.split(",")] if arguments.threads else default_thread_counts()
    known = (*PLAIN_SCHEMES, "int8", *BLOCK_SCHEMES, "attention")
    wanted = arguments.only.split(",") if arguments.only else known
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"--only knows {', '.join(known)}; not {', '.join(unknown)}.")
    library = load_library()
    rows: list[list[str]] = []
    for threads in counts:
        library.set_num_threads(threads)
        registers = measure_peaks([threads], kinds=("float32", "int8"))
        before = measure_peaks([threads], kinds=("read",))
        for name in wanted:
            measure = measure_attention if name == "attention" else measure_products
            measures = list(measure(library, name, threads, arguments.seconds))
            after = measure_peaks([threads], kinds=("read",))
            rows += [found.row(registers + before + after) for found in measures]
            before = after
    print(markdown([["kernel", "threads", "G/s", "peak", "share"], *rows]))


def measure_products(library: Library, scheme: str, threads: int, seconds: float) -> Iterator[Measure]:
    """Measure products of many rows, in operations, and of one row, in bytes of weights."""
    memory = WeightMemory()
    weight = random_weight(library, scheme, memory)
    kind: Kind = "float32" if scheme in PLAIN_SCHEMES else "int8"
    operations = 2 * MANY_ROWS * OUT_FEATURES * IN_FEATURES
    fastest = best(product(library, [weight], MANY_ROWS), seconds)
    yield Measure(f"{scheme}, {MANY_ROWS} rows", threads, operations / fastest / 1e9, kind)
    copies = [replace(weight, panels=copied(weight.panels, memory)) for _ in range(READ_BYTES // weight.num_bytes)]
    fastest = best(product(library, copies, 1), seconds)
    yield Measure(f"{scheme}, 1 row", threads, len(copies) * weight.num_bytes / fastest / 1e9, "read")


def random_weight(library: Library, scheme: str, memory: WeightMemory) -> Matrix:
    """Return a matrix in a format of files, or one that is rounded to int8 while it is loaded."""
    generator = torch.Generator().manual_seed(0)
    if scheme == "int8":
        stored = stored_matrix(torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator)).stored
    else:
        stored = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, generator).stored
    spec = WeightSpec(
        name="bench",
        out_features=OUT_FEATURES,
        in_features=IN_FEATURES,
        compute_dtype="float32",
        quantisation="int8" if scheme == "int8" else None,
    )
    (matrix,) = prepare_weight(library, spec, [stored], memory).matrices
    return matrix


def copied(panels: Tensor, memory: WeightMemory) -> Tensor:
    return memory.zeros(panels.numel(), panels.dtype).view(panels.shape).copy_(panels)


def product(library: Library, weights: Sequence[Matrix], rows: int) -> Callable[[], None]:
    """Return a function that multiplies by all of ``weights``."""
    x, out = torch.randn(rows, IN_FEATURES), torch.empty(rows, OUT_FEATURES)

    def multiply() -> None:
        for weight in weights:
            weight.linear(library, x, None, out)

    return multiply


def measure_attention(library: Library, _: str, threads: int, seconds: float) -> Iterator[Measure]:
    """Measure decodes that read keys and values, in bytes of the cache."""
    for dtype in KV_DTYPES:
        blocks = SEQUENCES * CONTEXT // BLOCK_SIZE
        spec = KVSpec(
            num_layers=1,
            num_kv_heads=KV_HEADS,
            head_size=HEAD_SIZE,
            value_head_size=HEAD_SIZE,
            block_size=BLOCK_SIZE,
            dtype=dtype,
        )
        spec = replace(spec, num_layers=max(1, READ_BYTES // (blocks * bytes_per_block(spec))))
        fastest = best(decode(library, spec, blocks), seconds)
        yield Measure(f"decode attention over {dtype}", threads, blocks * bytes_per_block(spec) / fastest / 1e9, "read")


def decode(library: Library, spec: KVSpec, blocks: int) -> Callable[[], None]:
    """Return a function that attends in all layers."""
    pool = allocate_kv(spec, blocks)
    tokens = SEQUENCES * CONTEXT
    params = AttentionParams(scale=HEAD_SIZE**-0.5)
    key, value = torch.randn(2, tokens, KV_HEADS, HEAD_SIZE).unbind()
    for layer in range(spec.num_layers):
        write_kv(library, pool, layer, key, value, torch.arange(tokens), params)
    query = torch.randn(SEQUENCES, HEADS, HEAD_SIZE)
    out = torch.empty_like(query)
    batch = AttentionBatch(
        num_requests=SEQUENCES,
        num_tokens=SEQUENCES,
        max_query_len=1,
        max_seq_len=CONTEXT,
        num_decodes=SEQUENCES,
        query_start_loc=torch.arange(SEQUENCES + 1, dtype=torch.int32),
        seq_lens=torch.full((SEQUENCES,), CONTEXT, dtype=torch.int32),
        block_table=torch.arange(blocks, dtype=torch.int32).view(SEQUENCES, -1),
        slot_mapping=torch.arange(SEQUENCES),
        host=NO_MIRROR,
    )

    def attend() -> None:
        for layer in range(spec.num_layers):
            attention(library, pool, layer, query, params, batch, out)

    return attend


def best(call: Callable[[], None], seconds: float) -> float:
    """Return what the fastest of the calls took, in seconds."""
    fastest, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


if __name__ == "__main__":
    main()
