"""``TpuProgram``: ``decode_step`` over a model's weights and pools, compiled a bucket at a time."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from torch import Tensor

from pageport.backend import DecoderDescription
from pageport.backend.program import Bucket, Compilation, ModelProgram, ProgramOutput, ProgramStep
from pageport_tpu.arrays import JaxDevice, as_tensor, copied_array
from pageport_tpu.decoder import StepInputs, StepOutputs, decode_step
from pageport_tpu.kv import KVPool
from pageport_tpu.parameters import Parameters


class StepShapes(NamedTuple):
    """What a compiled step is for: equal shapes are equal programs, whatever the weights."""

    description: DecoderDescription
    interpret: bool
    parameters: Any  # trees of array_shape
    pools: Any
    inputs: StepInputs

    @property
    def key(self) -> tuple[object, ...]:
        """What decides the program, hashable."""
        leaves, tree = jax.tree.flatten((self.parameters, self.pools, self.inputs))
        return self.description, self.interpret, tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)

    def placed_on(self, device: JaxDevice) -> "StepShapes":
        """Return the shapes of arrays on a device."""
        sharding = jax.sharding.SingleDeviceSharding(device)
        trees = (self.parameters, self.pools, self.inputs)
        parameters, pools, inputs = jax.tree.map(lambda leaf: array_shape(leaf.shape, leaf.dtype, sharding), trees)
        return self._replace(parameters=parameters, pools=pools, inputs=inputs)

    def traced(self) -> Any:
        """Trace the step; the pools are donated, so that they are updated in place."""
        step = jax.jit(partial(decode_step, self.description, self.interpret), donate_argnums=1)
        return step.trace(self.parameters, self.pools, self.inputs)


class CompiledSteps:
    """A device's compiled steps, by their shapes: another engine of the same model finds them here."""

    def __init__(self) -> None:
        self._steps: dict[tuple[object, ...], Callable[..., Any]] = {}
        self.compilations: list[Compilation] = []

    def get(self, bucket: Bucket, shapes: StepShapes) -> Callable[..., Any]:
        """Return a step, compiled now if it is new."""
        if shapes.key not in self._steps:
            start = time.perf_counter()
            self._steps[shapes.key] = shapes.traced().lower().compile()
            self.compilations.append(Compilation(bucket=bucket, seconds=time.perf_counter() - start))
        return self._steps[shapes.key]


class TpuProgram(ModelProgram):
    """Its pools are those it was built over: each step leaves new arrays in them."""

    def __init__(
        self,
        description: DecoderDescription,
        parameters: Parameters,
        pools: Sequence[KVPool],
        compiled: CompiledSteps,
        device: JaxDevice,
    ) -> None:
        self._description = description
        self._parameters: Parameters | None = parameters
        self._pools = tuple(pools)
        self._compiled = compiled
        self._device = device
        self._steps: dict[Bucket, Callable[..., Any]] = {}

    def shapes(self, bucket: Bucket, interpret: bool) -> StepShapes:
        """Return what is compiled for a bucket."""
        inputs = input_shapes(self._description, bucket)
        layers = tuple(pool.layers for pool in self._pools)
        return StepShapes(self._description, interpret, self._parameters, layers, inputs).placed_on(self._device)

    def compile(self, bucket: Bucket) -> None:
        self._steps[bucket] = self._compiled.get(bucket, self.shapes(bucket, interpret=self._device.platform != "tpu"))

    def step(self, step: ProgramStep) -> ProgramOutput:
        take = partial(copied_array, device=self._device)
        inputs = StepInputs(
            token_ids=take(step.token_ids),
            positions=take(step.positions),
            seq_lens=take(step.seq_lens),
            last_tokens=take(step.last_tokens),
            block_tables=tuple(map(take, step.block_tables)),
            slot_mappings=tuple(map(take, step.slot_mappings)),
        )
        layers = tuple(pool.layers for pool in self._pools)
        outputs, updated = self._steps[step.bucket](self._parameters, layers, inputs)
        for pool, new in zip(self._pools, updated, strict=True):
            pool.layers = new
        return _Output(outputs)

    def close(self) -> None:
        self._steps.clear()
        self._parameters = None


def array_shape(shape: tuple[int, ...], dtype: Any, sharding: Any = None) -> Any:
    """Return what stands for an array where only shapes count; trees of arrays are typed as such."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=sharding)


def input_shapes(description: DecoderDescription, bucket: Bucket) -> StepInputs:
    """Return the shapes of a bucket's inputs."""
    tokens, requests = (array_shape((size,), jnp.int32) for size in (bucket.tokens, bucket.requests))
    tables = tuple(
        array_shape((bucket.requests, bucket.context // group.block_size), jnp.int32)
        for group in description.cache_groups
    )
    return StepInputs(tokens, tokens, requests, requests, tables, tuple(tokens for _ in tables))


class _Output(ProgramOutput):
    def __init__(self, outputs: StepOutputs) -> None:
        self._outputs = outputs

    def logits(self) -> Tensor:
        return as_tensor(self._outputs.logits)

    def hidden(self) -> Tensor:
        return as_tensor(self._outputs.hidden)
