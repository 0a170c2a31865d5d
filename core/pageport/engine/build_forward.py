"""Build the model on a device whose weights are loaded: op by op, or as compiled programs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.backend.op_table import OpTable
from pageport.cache.layout import GroupLayout
from pageport.engine.block_tables import BlockTables
from pageport.engine.bucket_plan import BucketPlan
from pageport.engine.forward import Forward
from pageport.engine.kv_pools import KVPools
from pageport.engine.model_runner import PROMPT_LOGITS_ROWS
from pageport.engine.op_forward import OpForward
from pageport.engine.static_forward import StaticForward
from pageport.engine.step_buffers import StepBuffers
from pageport.errors import UnsupportedFeature
from pageport.models.decoder import Decoder
from pageport.models.description import describe_decoder
from pageport.models.rope import rope_tables
from pageport.models.spec import DecoderSpec

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What no step of an engine exceeds."""

    max_num_seqs: int
    step_tokens: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class ModelOnDevice:
    """A model's parts, loaded or allocated on ``device``."""

    spec: DecoderSpec
    weights: DecoderWeights
    ops: OpTable
    device: Device
    kv_specs: Sequence[KVSpec]
    groups: Sequence[GroupLayout]
    pools: KVPools
    compute_dtype: str


def op_forward(model: ModelOnDevice, limits: Limits, *, pipeline_depth: int, replays_graphs: bool) -> OpForward:
    """Build what runs ops."""
    where = model.device.torch_device
    decoder = Decoder(
        model.spec,
        model.weights,
        model.ops,
        dtype=getattr(torch, model.compute_dtype),
        device=where,
        max_tokens=limits.step_tokens,
        max_model_len=limits.max_model_len,
    )
    buffers = StepBuffers(
        model.groups,
        max_num_seqs=limits.max_num_seqs,
        max_tokens=limits.step_tokens,
        max_model_len=limits.max_model_len,
        device=where,
        num_stages=pipeline_depth + 1,
    )
    return OpForward(
        decoder,
        model.device,
        model.kv_specs,
        model.pools.on_device,
        buffers,
        max_logit_rows=max(limits.max_num_seqs, PROMPT_LOGITS_ROWS),
        max_decodes=min(limits.max_num_seqs, limits.step_tokens),
        replays_graphs=replays_graphs,
    )


def bucket_plan(model: ModelOnDevice, limits: Limits) -> BucketPlan:
    """Return the shapes that a device of static shapes compiles for these limits."""
    return BucketPlan(
        model.device.capabilities,
        max_num_seqs=min(limits.max_num_seqs, limits.step_tokens),
        step_tokens=limits.step_tokens,
        max_model_len=limits.max_model_len,
        block_sizes=[group.block_size for group in model.groups],
    )


def static_forward(model: ModelOnDevice, limits: Limits, plan: BucketPlan, progress: Progress) -> Forward:
    """Build what runs compiled programs, and compile every bucket.

    Args:
        progress: told of the buckets done and of their number.

    Raises:
        UnsupportedFeature: the device does not compute such a decoder.
    """
    device, spec = model.device, model.spec
    description = describe_decoder(
        spec, model.kv_specs, compute_dtype=model.compute_dtype, max_model_len=limits.max_model_len
    )
    declared = device.capabilities.features.get("whole_model", description.version)
    if declared < description.version:
        raise UnsupportedFeature(
            f"This decoder needs version {description.version} of whole_model; the device declares {declared}. Upgrade "
            "the backend, or use another one (pageport backends)."
        )
    weights = replace(model.weights, rope_tables=rope_tables(spec.ropes, limits.max_model_len, device.torch_device))
    with torch.inference_mode():
        program = device.build_model(description, weights, model.pools.on_device, plan.buckets)
        for done, bucket in enumerate(plan.buckets):
            progress(done, len(plan.buckets))
            program.compile(bucket)
        progress(len(plan.buckets), len(plan.buckets))
    tables = BlockTables(
        [group.block_size for group in model.groups],
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
    )
    return StaticForward(
        program,
        plan,
        tables,
        lambda hidden: _head(model, hidden),
        vocab_size=spec.vocab_size,
        device=device.torch_device,
    )


def _head(model: ModelOnDevice, hidden: Tensor) -> Tensor:
    head, cap = model.weights.lm_head, model.spec.logit_softcap
    logits = model.ops.linear(head.weight, hidden, head.bias)[:, : model.spec.vocab_size]
    return logits if cap is None else model.ops.softcap(logits, cap)
