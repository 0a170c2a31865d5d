"""The kernel that copies blocks of the KV cache."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl


@triton.jit
def copy_blocks_kernel(
    memory_pointer,  # int32 [layers, blocks, LAYER_WORDS]
    pairs_pointer,  # int64 [pairs, 2]
    layer_stride,
    LAYER_WORDS: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Copy a piece of one layer of one block to another block."""
    source = tl.load(pairs_pointer + 2 * tl.program_id(0))
    target = tl.load(pairs_pointer + 2 * tl.program_id(0) + 1)
    layer_pointer = memory_pointer + tl.program_id(1).to(tl.int64) * layer_stride
    words = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    copied = tl.load(layer_pointer + source * LAYER_WORDS + words, mask=words < LAYER_WORDS)
    tl.store(layer_pointer + target * LAYER_WORDS + words, copied, mask=words < LAYER_WORDS)
