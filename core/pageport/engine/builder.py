"""Build an engine from settings: resolve and load the model, open the backend, size the cache."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pageport.backend.capabilities import Capabilities
from pageport.backend.coverage import check_kv
from pageport.backend.device import Device
from pageport.backend.discovery import discover, select
from pageport.backend.kv import KVSpec
from pageport.backend.op_table import compile_ops
from pageport.backend.reference.choose import choose_tokens
from pageport.cache.block_manager import BlockManager
from pageport.config import EngineConfig, ModelConfig, SchedulerConfig
from pageport.engine.backend_options import read_backend_options
from pageport.engine.bucket_plan import longest_context
from pageport.engine.build_forward import Limits, ModelOnDevice, bucket_plan, op_forward, static_forward
from pageport.engine.cache_plan import CachePlan, GroupNeeds, plan_cache
from pageport.engine.engine import Engine
from pageport.engine.forward import Forward
from pageport.engine.grammars import Grammars
from pageport.engine.kv_pools import KVPools
from pageport.engine.messages import EngineInfo
from pageport.engine.model_runner import ModelRunner
from pageport.engine.precision import Precision, choose_precision
from pageport.errors import ConfigurationError
from pageport.models.checkpoint import Checkpoint
from pageport.models.layer import attention_params
from pageport.models.loaders import open_checkpoint
from pageport.models.registry import decoder_spec
from pageport.models.resolve import resolve_model
from pageport.models.spec import CacheGroup, DecoderSpec, cache_groups
from pageport.models.weights import Progress, load_decoder_weights
from pageport.sampling.grammar import Vocabulary
from pageport.scheduling.scheduler import Scheduler
from pageport.text.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)


class OpenModel(NamedTuple):
    """A checkpoint whose weights are still unread, and its architecture."""

    checkpoint: Checkpoint
    spec: DecoderSpec


@dataclass(frozen=True, kw_only=True)
class BuiltEngine:
    """An engine ready to step, what clients must know of it, and the device to close after it."""

    engine: Engine
    info: EngineInfo
    device: Device

    def close(self) -> None:
        self.engine.close()
        self.device.close()


def build_engine(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    """Load the model on the chosen backend.

    Raises:
        ModelError, BackendError, ConfigurationError: each in one sentence with what to do.
    """
    model = open_model(config.model)
    backend, why = select(discover(), config.backend.backend)
    device = backend().open(config.backend.device, read_backend_options(config.backend.backend_options))
    try:
        return build_engine_on(device, model, config, backend_name=backend.name, why=why, progress=progress)
    except BaseException:
        device.close()
        raise


def open_model(config: ModelConfig) -> OpenModel:
    """Find the model and read what it is.

    Raises:
        ModelError: not found, of an unknown architecture, or damaged.
    """
    path = resolve_model(config.model, config.revision, allow_pickle=config.allow_pickle)
    checkpoint = open_checkpoint(path, allow_pickle=config.allow_pickle)
    return OpenModel(checkpoint, decoder_spec(checkpoint.config, checkpoint.names()))


def build_engine_on(
    device: Device,
    model: OpenModel,
    config: EngineConfig,
    *,
    backend_name: str,
    why: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> BuiltEngine:
    """Load the model on an open device, which the result owns; when this raises, the caller still does.

    Args:
        why: reasons for this backend, for the start-up summary.

    Raises:
        CorruptWeights: a weight is missing or has another shape.
        UnsupportedFeature: the device does not declare something that the model or a setting needs.
        OutOfMemory: the model or one context does not fit.
    """
    checkpoint, spec = model
    config = replace(config, scheduler=_with_step_tokens(config.scheduler, device.capabilities))
    precision = choose_precision(config, checkpoint.scheme, device.capabilities)
    # What runs as whole programs leaves no op of the decoder to the reference, nor to the device's own op.
    strict = config.backend.strict_ops and not device.capabilities.static_shapes
    ops = compile_ops(device, strict=strict)
    groups = cache_groups(spec)
    specs = [group.kv_spec(config.cache.block_size, precision.kv_dtype) for group in groups]
    for kv, group in zip(specs, groups, strict=True):
        check_kv(device.capabilities, kv)
        for attention in (spec.layers[layer].attention for layer in group.layers):
            device.check_attention(kv, attention.num_heads, attention_params(attention))
    _check_context(config.model.max_model_len, spec)
    weights = load_decoder_weights(
        spec,
        checkpoint,
        device,
        precision.compute_dtype,
        dequantise=precision.dequantise,
        quantisation=precision.quantisation,
        progress=progress,
    )
    plan = _plan(device, specs, groups, spec, config)
    depth = config.backend.pipeline_depth
    depth = device.capabilities.pipeline_depth if depth is None else depth
    scheduling = config.scheduler
    pools = KVPools(device, specs, plan.groups)
    model_on_device = ModelOnDevice(
        spec=spec,
        weights=weights,
        ops=ops,
        device=device,
        kv_specs=specs,
        groups=plan.groups,
        pools=pools,
        compute_dtype=precision.compute_dtype,
    )
    limits = Limits(
        max_num_seqs=scheduling.max_num_seqs, step_tokens=scheduling.step_tokens, max_model_len=plan.max_model_len
    )
    try:
        forward, steps = _forward(model_on_device, limits, config, depth, progress)
    except BaseException:
        pools.close()
        raise
    is_static = device.capabilities.static_shapes
    runner = ModelRunner(
        forward,
        device,
        pools,
        max_num_seqs=scheduling.max_num_seqs,
        max_model_len=plan.max_model_len,
        vocab_size=spec.vocab_size,
        # What programs leave to core is sampled on the host, where shapes may be any.
        choose=choose_tokens if is_static else ops.sample,
        where=torch.device("cpu") if is_static else device.torch_device,
    )
    blocks = BlockManager(
        plan.groups,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        max_tokens_per_step=scheduling.step_tokens,
    )
    scheduler = Scheduler(scheduling, blocks, pipeline_depth=depth, max_model_len=plan.max_model_len)
    grammars = Grammars(lambda: _vocabulary(config.model, checkpoint))
    engine = Engine(scheduler, runner, scheduling, pipeline_depth=depth, grammars=grammars)
    info = EngineInfo(
        model_name=config.model.served_model_name or config.model.model,
        architecture=spec.architecture,
        vocab_size=spec.vocab_size,
        max_model_len=plan.max_model_len,
        max_request_tokens=blocks.max_sequence_tokens,
        max_num_seqs=scheduling.max_num_seqs,
        block_size=config.cache.block_size,
        num_blocks=tuple(group.num_blocks for group in plan.groups),
        eos_token_ids=_eos_token_ids(checkpoint),
        dtype=precision.compute_dtype,
        backend=backend_name,
        summary=(
            *_summary(backend_name, why, checkpoint, spec, precision, device, plan),
            f"steps    {steps}",
        ),
    )
    return BuiltEngine(engine=engine, info=info, device=device)


def _with_step_tokens(config: SchedulerConfig, capabilities: Capabilities) -> SchedulerConfig:
    """Let the device say how many tokens a step computes, where the user does not; every row can decode."""
    if config.max_num_batched_tokens is not None or capabilities.step_tokens is None:
        return config
    return replace(config, max_num_batched_tokens=max(capabilities.step_tokens, config.max_num_seqs))


def _check_context(asked: int | None, spec: DecoderSpec) -> None:
    if asked is not None and not 1 <= asked <= spec.max_positions:
        raise ConfigurationError(f"--max-model-len is {asked}; this model takes 1 … {spec.max_positions} tokens.")


def _plan(
    device: Device, specs: list[KVSpec], groups: tuple[CacheGroup, ...], spec: DecoderSpec, config: EngineConfig
) -> CachePlan:
    asked = config.model.max_model_len
    longest = min(spec.max_positions, longest_context(device.capabilities, asked) or spec.max_positions)
    needs = [
        GroupNeeds(bytes_per_block=device.bytes_per_block(kv), sliding_window=group.sliding_window)
        for kv, group in zip(specs, groups, strict=True)
    ]
    return plan_cache(
        needs,
        config.cache,
        config.scheduler,
        free_bytes=device.memory().free,
        max_model_len=asked or longest,
        max_model_len_is_explicit=asked is not None,
    )


def _eos_token_ids(checkpoint: Checkpoint) -> frozenset[int]:
    """Union of every end token the model's files name; each may be an id, a list or null."""
    ids: set[int] = set()
    for source in (checkpoint.config, checkpoint.generation_config):
        value: Any = source.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)


def _vocabulary(config: ModelConfig, checkpoint: Checkpoint) -> Vocabulary:
    """Load the tokenizer that the clients of this engine have, for requests that constrain their output."""
    home = config.tokenizer or resolve_model(config.model, config.revision, allow_pickle=config.allow_pickle)
    tokenizer = load_tokenizer(Path(home))
    return Vocabulary(
        [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)],
        special_token_ids=tokenizer.all_special_ids,
        end_token_ids=_eos_token_ids(checkpoint) | tokenizer.eos_token_ids,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )


def _forward(
    model: ModelOnDevice, limits: Limits, config: EngineConfig, pipeline_depth: int, progress: Progress | None
) -> tuple[Forward, str]:
    """Build the model's way of computing steps; say in a few words what it is."""
    capabilities = model.device.capabilities
    if capabilities.static_shapes:
        plan = bucket_plan(model, limits)
        forward = static_forward(model, limits, plan, progress or (lambda done, total: None))
        return forward, f"whole programs, {len(plan.buckets)} compiled: {plan.description}"
    has_graphs = "graph" in capabilities.features
    replays_graphs = has_graphs and not config.backend.enforce_eager
    if replays_graphs:
        what = "replayed in any size" if capabilities.graphs_resize else "decodes replayed, from a capture a batch size"
        steps = f"{what} (--enforce-eager turns it off)"
    else:
        steps = "op by op, as --enforce-eager says" if has_graphs else "op by op: the backend replays no graphs"
    return op_forward(model, limits, pipeline_depth=pipeline_depth, replays_graphs=replays_graphs), steps


def _summary(
    backend_name: str,
    why: tuple[str, ...],
    checkpoint: Checkpoint,
    spec: DecoderSpec,
    precision: Precision,
    device: Device,
    plan: CachePlan,
) -> tuple[str, ...]:
    weights = precision.describe_weights(checkpoint.scheme, device.capabilities)
    full = [group for group in plan.groups if group.sliding_window is None]
    contexts = min((g.num_blocks * g.block_size / plan.max_model_len for g in full), default=float("inf"))
    return (
        f"model    {checkpoint.path.name}: {spec.architecture}, {len(spec.layers)} layers, {weights}",
        f"backend  {backend_name}: {'; '.join(why)}",
        f"context  {plan.max_model_len} tokens of {spec.max_positions}",
        f"cache    {precision.kv_dtype}, {plan.explanation}; {contexts:.1f} full contexts at once",
    )
