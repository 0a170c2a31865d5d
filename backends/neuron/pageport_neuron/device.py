"""``NeuronDevice``: one logical core, whose models are programs compiled for fixed shapes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend.capabilities import Capabilities
from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.device import Device
from pageport.backend.kv import KVSpec, Memory
from pageport.backend.program import Bucket, Compilation, ModelProgram
from pageport.backend.reference.static_decoder import DESCRIPTION_VERSION, GraphInputs, GraphOutputs
from pageport.errors import BackendUnavailable
from pageport_neuron.attention import DecodeAttention, decode_attention, nki_decode_attention
from pageport_neuron.checking_compiler import CheckingCompiler
from pageport_neuron.compiler import Compiler, NeuronCompiler, Step
from pageport_neuron.decoder import NeuronDecoder
from pageport_neuron.options import NeuronOptions
from pageport_neuron.program import GraphKey, NeuronProgram, draw_on_host
from pageport_neuron.runtime import DEVICE_TYPE, NeuronRuntime, import_package

# What a device that is not there says it has for caches: the answer is the same on every host.
HOST_BYTES = 4 << 30


class NeuronDevice(Device):
    """What all of them share: buckets, programs, and who draws tokens."""

    def __init__(
        self, options: NeuronOptions, torch_device: torch.device, compiler: Compiler, attention: DecodeAttention
    ) -> None:
        self._options = options
        self._torch_device = torch_device
        self._compiler = compiler
        self._attention = attention
        self._graphs: dict[GraphKey, Step] = {}

    @property
    def capabilities(self) -> Capabilities:
        options = self._options
        return Capabilities(
            compute_dtypes=("float32", "bfloat16"),
            preferred_dtype="bfloat16",
            kv_dtypes=("float32", "bfloat16"),
            block_sizes=(16, 32, 64, 128),
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
            step_tokens=options.token_buckets[-1],
            static_shapes=True,
            token_buckets=options.token_buckets,
            request_buckets=options.request_buckets,
            context_buckets=options.context_buckets,
            features={"whole_model": DESCRIPTION_VERSION, "op:sample": 1},
        )

    @property
    def torch_device(self) -> torch.device:
        return self._torch_device

    @property
    def draws(self) -> bool:
        """Whether programs draw tokens; else the host does."""
        return self._options.sampling == "device"

    @property
    def compilations(self) -> Sequence[Compilation]:
        return tuple(self._compiler.compilations)

    def build_model(
        self,
        description: DecoderDescription,
        weights: DecoderWeights,
        pools: Sequence[Any],
        buckets: Sequence[Bucket],
    ) -> ModelProgram:
        return NeuronProgram(self, description, weights, pools)

    def step_of(self, description: DecoderDescription) -> Step:
        """Return a decoder's step as a function of its weights, its pools and the step's tensors."""

        def step(weights: DecoderWeights, pools: tuple[Any, ...], inputs: GraphInputs) -> GraphOutputs:
            decoder = NeuronDecoder(
                self, description, weights, pools, decode_attention=self._attention, draws=self.draws
            )
            return decoder(inputs)

        return step

    def compiled(self, key: GraphKey, weights: DecoderWeights, pools: tuple[Any, ...], inputs: GraphInputs) -> Step:
        """Return the graph of a bucket, compiled unless one of the same shapes was before."""
        if key not in self._graphs:
            step = self.step_of(key.description)
            self._graphs[key] = self._compiler.compile(step, key.bucket, weights, pools, inputs)
        return self._graphs[key]

    def sample(self, logits: Tensor, batch: ChoiceBatch) -> Choice:
        # Random bits are products of 64-bit integers and noise is float64: the device has neither.
        return draw_on_host(logits, batch)

    def close(self) -> None:
        self._graphs.clear()


class HardwareDevice(NeuronDevice):
    """A logical core that is there; nothing in this class has run on one."""

    def __init__(self, options: NeuronOptions, ordinal: int) -> None:
        """Open a core.

        Raises:
            BackendUnavailable: the vendor's package is missing, or sees no such core.
        """
        self._runtime = NeuronRuntime.load()
        count = self._runtime.device_count()
        if not 0 <= ordinal < count:
            raise BackendUnavailable(f"There is no Neuron device {ordinal}; torch_neuronx sees {count}.")
        attention = nki_decode_attention() or decode_attention
        super().__init__(options, torch.device(DEVICE_TYPE, ordinal), NeuronCompiler(), attention)

    def memory(self) -> Memory:
        return self._runtime.memory(self.torch_device)

    def synchronize(self) -> None:
        self._runtime.synchronize(self.torch_device)


class HostDevice(NeuronDevice):
    """No core: tensors lie in host memory, for a simulation or for compiling ahead of time."""

    def __init__(
        self, options: NeuronOptions, torch_device: torch.device, compiler: Compiler, attention: DecodeAttention
    ) -> None:
        super().__init__(options, torch_device, compiler, attention)
        self._pool_bytes = 0

    @property
    def capabilities(self) -> Capabilities:
        # Of a core that is there nobody has measured it.
        return replace(super().capabilities, determinism="run")

    def memory(self) -> Memory:
        free = max(0, HOST_BYTES - self._pool_bytes)
        return Memory(total=HOST_BYTES, free=free, reserved_by_this_process=HOST_BYTES - free)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        pool = super().allocate_kv(spec, num_blocks)
        self._pool_bytes += sum(tensor.nbytes for tensor in pool.tensors)
        return pool

    def free_kv(self, pool: Any) -> None:
        self._pool_bytes -= sum(tensor.nbytes for tensor in pool.tensors)
        super().free_kv(pool)


def simulated_device(options: NeuronOptions) -> NeuronDevice:
    """Open a device whose programs are checked as the compiler would, and run op by op on the host."""
    compiler = CheckingCompiler(allows_float64=options.sampling == "device")
    return HostDevice(options, torch.device("cpu"), compiler, decode_attention)


def compiling_device(options: NeuronOptions) -> NeuronDevice:
    """Open what fills the compiler's cache on a machine without the device; the environment has to say so.

    Raises:
        BackendUnavailable: the vendor's package is missing.
    """
    import_package()
    return HostDevice(options, torch.device("cpu"), NeuronCompiler(), nki_decode_attention() or decode_attention)
