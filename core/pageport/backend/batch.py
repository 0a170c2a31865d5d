"""``AttentionBatch``: one step's ragged batch as attention kernels see it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Int32, Int64
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionMirror:
    """The same numbers on the host, read without a device sync; upper bounds while steps are in flight."""

    query_start_loc: npt.NDArray[np.int32]  # [requests + 1]
    seq_lens: npt.NDArray[np.int32]  # [requests]
    block_table: npt.NDArray[np.int32]  # [requests, max_blocks]


@dataclass(kw_only=True)
class AttentionBatch:
    """Requests of one step and one cache group.

    ``seq_lens`` counts cached plus this step's tokens. Query j of request r, which has n_r queries, sits at position
    ``seq_lens[r] - n_r + j``. Keys and values of this step are written before attention. Padding rows have
    ``seq_lens`` 0 and slot -1. The first ``num_decodes`` requests have at most ``max_decode_query_len`` queries.
    ``plan`` is what ``Device.plan`` returned for this batch.
    """

    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    num_decodes: int
    query_start_loc: Int32[Tensor, "requests_plus_1"]
    seq_lens: Int32[Tensor, "requests"]
    block_table: Int32[Tensor, "requests max_blocks"]
    slot_mapping: Int64[Tensor, "tokens"]
    host: AttentionMirror
    plan: Any = field(default=None)
