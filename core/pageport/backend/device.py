"""``Device``: an opened device. Three methods are needed; every op has a plain-torch reference until replaced.

A subclass replaces an op by overriding its method. The ops in ``REQUIRED_OPS`` belong to the interface itself; an
override of one in ``OPTIONAL_OPS`` is used when ``capabilities.features`` declares ``op:<name>`` with a version this
pageport serves (``pageport.backend.op_table`` checks both directions).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.capabilities import Capabilities
from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.coverage import check_attention, check_kv
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.graph import Graph
from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.program import Bucket, Compilation, ModelProgram
from pageport.backend.reference import attention as reference_attention
from pageport.backend.reference import choose as reference_choose
from pageport.backend.reference import kv as reference_kv
from pageport.backend.reference import ops as reference_ops
from pageport.backend.reference import weights as reference_weights
from pageport.backend.reference.static_decoder import StaticGraph, build_static_program
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.errors import UnsupportedFeature


class Device(ABC):
    """One opened device: its memory, its KV storage, its form of every weight, its ops."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this device can do."""

    @property
    @abstractmethod
    def torch_device(self) -> torch.device:
        """Where core puts the tensors it hands over; ``cpu`` for a device of another framework."""

    @abstractmethod
    def memory(self) -> Memory:
        """Return total, free and own memory in bytes, now."""

    def synchronize(self) -> None:  # noqa: B027 - nothing to wait for unless the device is asynchronous
        """Wait until everything submitted is done."""

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Start to copy tensors of this device to the host; nobody writes to them afterwards.

        Returns:
            What waits for these copies, but not for work that was submitted later, and returns them in order. The
            inherited one copies when it is called, and waits for everything.
        """
        return lambda: [tensor.cpu() for tensor in tensors]

    def close(self) -> None:  # noqa: B027 - nothing to give back unless the device holds something
        """Give everything back; calling it twice is harmless."""

    # --- optional feature: graph -------------------------------------------------------------------------------

    def capture(self, run: Callable[[], None]) -> Graph:
        """Record the ops that ``run`` calls, so that they can be repeated at once (the feature ``graph``).

        ``run`` calls ops of this device, and takes views, of tensors that keep their addresses as long as the graph is
        in use. ``replay`` then does what ``run`` would do with the *current* contents of these tensors: nothing that
        was read from one while capturing may be kept. Numbers and shapes are those of the capture. Capturing may
        execute the ops or not (``Graph.has_run``): if not, whatever they write is undefined until ``replay``.

        Core captures steps in which every request has one token, once a number of requests, after a step of this size
        has run op by op. The ``AttentionBatch`` of a captured step has ``max_seq_len`` and block tables as wide as any
        step may need: lengths are read from its tensors, entries of the block table behind a request's blocks may hold
        anything, and ``host`` is empty. ``plan`` is called with the exact batch before every capture and every replay,
        and its result put in the captured batch; what a graph reads of a plan lies in memory that the next call of
        ``plan`` with as many requests fills anew.

        With ``Capabilities.graphs_resize`` core captures the first step of decodes and the first one with prompts as
        they are, and resizes these two graphs from then on (``Graph.resize``).

        Raises:
            UnsupportedFeature: the device has no graphs.
        """
        raise UnsupportedFeature(f"{type(self).__qualname__} does not capture graphs.")

    # --- optional feature: whole_model -------------------------------------------------------------------------

    def build_model(
        self,
        description: DecoderDescription,
        weights: DecoderWeights,
        pools: Sequence[Any],
        buckets: Sequence[Bucket],
    ) -> ModelProgram:
        """Build a program of the whole decoder (the feature ``whole_model``); only asked for with ``static_shapes``.

        Core compiles every bucket before the first step and never asks for a shape that is not among them.
        ``copy_blocks``, ``export_blocks`` and ``import_blocks`` act on the same pools between steps.

        The inherited program is ``pageport.backend.reference.static_decoder``: plain torch without a shape that
        depends on data, for pools, matrices and ops as they are inherited. A device with a compiler behind
        ``torch.compile`` overrides ``compile_graph`` alone.

        Args:
            pools: of ``description.cache_groups``, from ``allocate_kv``.

        Raises:
            UnsupportedFeature: the decoder has something that this device does not compute.
        """
        return build_static_program(self, description, weights, pools)

    def compile_graph(self, graph: StaticGraph, bucket: Bucket) -> StaticGraph:
        """Compile the inherited program for one bucket: return a function that does what ``graph`` does.

        Both take and return tensors alone, in the shapes that the bucket fixes (``StaticGraph``). The inherited method
        returns ``graph``.
        """
        return graph

    @property
    def compilations(self) -> Sequence[Compilation]:
        """What was compiled since the device was opened; nothing where it does not tell."""
        return ()

    # --- weights -----------------------------------------------------------------------------------------------

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        """Turn stored matrices, concatenated by rows, into this device's own form.

        Called once per matrix while loading, which drops ``parts`` afterwards. The result is opaque to core, which
        passes it to ``linear`` and ``embed`` (a tied embedding is one weight for both).
        """
        return reference_weights.prepare_weight(spec, parts, self.torch_device)

    def weight_bytes(self, weight: Any) -> int:
        """Return the bytes ``weight`` occupies on the device."""
        return reference_weights.weight_bytes(weight)

    def linear(
        self,
        weight: Any,
        x: Float[Tensor, "tokens in_features"],
        bias: Float[Tensor, "out_features"] | None = None,
        out: Float[Tensor, "tokens out_features"] | None = None,
    ) -> Float[Tensor, "tokens out_features"]:
        """Return ``x · Wᵀ + bias``."""
        return reference_weights.linear(weight, x, bias, out)

    def embed(
        self, weight: Any, token_ids: Int64[Tensor, "tokens"], out: Float[Tensor, "tokens in_features"] | None = None
    ) -> Float[Tensor, "tokens in_features"]:
        """Return the rows ``token_ids`` of the weight."""
        return reference_weights.embed(weight, token_ids, out)

    # --- KV cache ----------------------------------------------------------------------------------------------

    def bytes_per_block(self, spec: KVSpec) -> int:
        """Return the bytes one block takes over all layers of the group."""
        return reference_kv.bytes_per_block(spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        """Allocate the pool of one cache group; the result is opaque to core.

        Raises:
            OutOfMemory: it does not fit.
            UnsupportedFeature: ``spec`` is not covered by the capabilities.
        """
        check_kv(self.capabilities, spec)
        reference_kv.check_memory(spec, num_blocks, self.memory())
        return reference_kv.allocate_kv(spec, num_blocks, self.torch_device)

    def free_kv(self, pool: Any) -> None:
        """Give the pool's memory back."""
        reference_kv.free_kv(pool)

    def write_kv(
        self,
        pool: Any,
        layer: int,
        key: Float[Tensor, "tokens kv_heads head_size"],
        value: Float[Tensor, "tokens kv_heads value_head_size"],
        slot_mapping: Int64[Tensor, "tokens"],
        params: AttentionParams,
    ) -> None:
        """Store keys and values at ``slot = block_id * block_size + offset``; slot -1 is padding and skipped.

        Both may be views with strides between tokens and heads.
        """
        reference_kv.write_kv(pool, layer, key, value, slot_mapping, params)

    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in all layers, in the given order: copy-on-write's primitive."""
        reference_kv.copy_blocks(pool, pairs)

    def export_blocks(self, pool: Any, block_ids: Sequence[int], out: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
        """Copy blocks, all layers, to host memory."""
        reference_kv.export_blocks(pool, block_ids, out)

    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
        """Copy what ``export_blocks`` gave back into blocks."""
        reference_kv.import_blocks(pool, block_ids, data)

    # --- attention ---------------------------------------------------------------------------------------------

    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Any:
        """Prepare whatever the kernels want once per step and cache group; kept in ``batch.plan``.

        An inherited half of attention finds the inherited plan there, or makes one for each layer.
        """
        return reference_attention.plan(spec, batch)

    def check_attention(self, spec: KVSpec, num_heads: int, params: AttentionParams) -> None:
        """Refuse a layer's attention that this device does not compute.

        Core asks once a layer, before the first step; attention is only called with what was accepted here, so that
        it need not look again. The inherited answer goes by the capabilities; a device may refuse more (one head
        size together with one variant, say), never less.

        Args:
            num_heads: query heads on this rank.

        Raises:
            UnsupportedFeature: names what is not covered.
        """
        check_attention(self.capabilities, params)

    def attention(
        self,
        pool: Any,
        layer: int,
        query: Float[Tensor, "tokens heads head_size"],
        params: AttentionParams,
        batch: AttentionBatch,
        out: Float[Tensor, "tokens heads value_head_size"],
    ) -> None:
        """Attend over the paged cache; ``layer`` indexes the pool.

        ``query`` may be a view with strides between tokens and heads. Blocks and slots that no query sees may hold
        anything, NaN too, and their entries of the block table may be -1. Padding rows of ``out`` may hold anything
        finite.

        The inherited method splits the rows in two. A device overrides this one, or one or both of those.
        """
        if batch.num_decodes:
            self.decode_attention(pool, layer, query, params, batch, out)
        if batch.num_decodes < batch.num_requests:
            self.prefill_attention(pool, layer, query, params, batch, out)

    def decode_attention(
        self,
        pool: Any,
        layer: int,
        query: Float[Tensor, "tokens heads head_size"],
        params: AttentionParams,
        batch: AttentionBatch,
        out: Float[Tensor, "tokens heads value_head_size"],
    ) -> None:
        """Attend for the requests before ``batch.num_decodes``; leave the tokens of the others alone."""
        rows = range(batch.num_decodes)
        reference_attention.attention(pool, layer, query, params, batch, out, rows)

    def prefill_attention(
        self,
        pool: Any,
        layer: int,
        query: Float[Tensor, "tokens heads head_size"],
        params: AttentionParams,
        batch: AttentionBatch,
        out: Float[Tensor, "tokens heads value_head_size"],
    ) -> None:
        """Attend for the requests from ``batch.num_decodes`` on, whatever their number of queries."""
        rows = range(batch.num_decodes, batch.num_requests)
        reference_attention.attention(pool, layer, query, params, batch, out, rows)

    # --- optional ops: norms, rotary embedding, activations ------------------------------------------------------

    def rms_norm(
        self,
        x: Float[Tensor, "... features"],
        weight: Float[Tensor, "features"],
        epsilon: float,
        out: Float[Tensor, "... features"] | None = None,
    ) -> Float[Tensor, "... features"]:
        """Return ``x / sqrt(mean(x²) + epsilon) * weight`` (arXiv:1910.07467), computed in float32.

        ``x`` may be a view with strides between rows.
        """
        return reference_ops.rms_norm(x, weight, epsilon, out)

    def add_rms_norm(
        self,
        x: Float[Tensor, "tokens features"],
        residual: Float[Tensor, "tokens features"],
        weight: Float[Tensor, "features"],
        epsilon: float,
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Add ``x`` to ``residual`` in place and return the RMS norm of the sum."""
        return reference_ops.add_rms_norm(x, residual, weight, epsilon, out)

    def layer_norm(
        self,
        x: Float[Tensor, "tokens features"],
        weight: Float[Tensor, "features"],
        bias: Float[Tensor, "features"] | None,
        epsilon: float,
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Return the layer norm (arXiv:1607.06450)."""
        return reference_ops.layer_norm(x, weight, bias, epsilon, out)

    def add(
        self,
        x: Float[Tensor, "tokens features"],
        y: Float[Tensor, "tokens features"],
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Return ``x + y``; ``out`` may be ``x``."""
        return reference_ops.add(x, y, out)

    def scale(
        self, x: Float[Tensor, "tokens features"], factor: float, out: Float[Tensor, "tokens features"] | None = None
    ) -> Float[Tensor, "tokens features"]:
        """Return ``x * factor``; ``out`` may be ``x``."""
        return reference_ops.scale(x, factor, out)

    def rope(
        self,
        query: Float[Tensor, "tokens heads head_size"],
        key: Float[Tensor, "tokens kv_heads head_size"],
        positions: Int64[Tensor, "tokens"],
        cos_sin: Float[Tensor, "positions rotary_size"],
        interleaved: bool,
    ) -> None:
        """Rotate the first ``rotary_size`` features of query and key in place (arXiv:2104.09864).

        Both may be views with strides between tokens and heads. ``cos_sin`` holds cosines, then sines, of
        ``rotary_size / 2`` angles in float32. Pairs are (i, i + rotary_size / 2), or (2i, 2i + 1) when
        ``interleaved``.
        """
        reference_ops.rope(query, key, positions, cos_sin, interleaved)

    def rope_write_kv(
        self,
        pool: Any,
        layer: int,
        query: Float[Tensor, "tokens heads head_size"],
        key: Float[Tensor, "tokens kv_heads head_size"],
        value: Float[Tensor, "tokens kv_heads value_head_size"],
        positions: Int64[Tensor, "tokens"],
        cos_sin: Float[Tensor, "positions rotary_size"],
        interleaved: bool,
        slot_mapping: Int64[Tensor, "tokens"],
        params: AttentionParams,
    ) -> None:
        """Do what ``rope`` and then ``write_kv`` do, in one pass.

        ``key`` need not be rotated in place: only what the cache holds counts. The inherited method calls this
        device's ``rope`` and ``write_kv``.
        """
        self.rope(query, key, positions, cos_sin, interleaved)
        self.write_kv(pool, layer, key, value, slot_mapping, params)

    def silu_mul(
        self, gate_up: Float[Tensor, "tokens twice_features"], out: Float[Tensor, "tokens features"] | None = None
    ) -> Float[Tensor, "tokens features"]:
        """Return ``silu(gate) * up``, gate being the first half of the columns."""
        return reference_ops.silu_mul(gate_up, out)

    def linear_silu_mul(
        self,
        weight: Any,
        x: Float[Tensor, "tokens in_features"],
        bias: Float[Tensor, "twice_features"] | None,
        gate_up: Float[Tensor, "tokens twice_features"],
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Do what ``linear`` and then ``silu_mul`` do, in one pass.

        The product is rounded to the dtype of ``gate_up`` before it is activated, but need not be stored: ``gate_up``
        is room for it, and may hold anything afterwards. The inherited method calls this device's ``linear`` and
        ``silu_mul``.
        """
        self.linear(weight, x, bias, gate_up)
        return self.silu_mul(gate_up, out)

    def gelu_mul(
        self,
        gate_up: Float[Tensor, "tokens twice_features"],
        tanh: bool,
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Return ``gelu(gate) * up``; ``tanh`` picks the tanh approximation (arXiv:1606.08415)."""
        return reference_ops.gelu_mul(gate_up, tanh, out)

    def gelu(
        self,
        x: Float[Tensor, "tokens features"],
        tanh: bool,
        out: Float[Tensor, "tokens features"] | None = None,
    ) -> Float[Tensor, "tokens features"]:
        """Return ``gelu(x)``; ``out`` may be ``x``."""
        return reference_ops.gelu(x, tanh, out)

    def softcap(
        self, x: Float[Tensor, "tokens features"], cap: float, out: Float[Tensor, "tokens features"] | None = None
    ) -> Float[Tensor, "tokens features"]:
        """Return ``cap * tanh(x / cap)``; ``out`` may be ``x``."""
        return reference_ops.softcap(x, cap, out)

    def gather_rows(
        self,
        x: Float[Tensor, "tokens features"],
        rows: Int64[Tensor, "rows"],
        out: Float[Tensor, "rows features"] | None = None,
    ) -> Float[Tensor, "rows features"]:
        """Return ``x[rows]``."""
        return reference_ops.gather_rows(x, rows, out)

    # --- optional op: choosing tokens -----------------------------------------------------------------------------

    def sample(self, logits: Float[Tensor, "rows vocab"], batch: ChoiceBatch) -> Choice:
        """Choose one token a row, in float32 whatever the dtype of ``logits``, which are left as they are.

        Without a temperature it is the one with the largest logit, the lowest id among equals. Otherwise each token's
        score is its scaled logit, ``(logit - largest) / temperature``, plus Gumbel noise ``-log(-log(u))`` in float64;
        the best score wins. u = (bits + 1/2) / 2³², where the 32 bits are word ``id % 4`` of Philox4x32-10's block with
        the counter (``id // 4``, low half of the position, 0, 0) and the seed as its key, low half first.

        Filters leave a prefix of the ranking by scaled logit, lower ids first among equals: tokens whose scaled logit
        is at least log(``min_p``); of these the first ``top_k``; of these the fewest whose probabilities, renormalised,
        sum to ``top_p`` or more; always the first. Any implementation chooses the same tokens: where a rounding would
        decide, ask the inherited method.
        """
        return reference_choose.choose_tokens(logits, batch)
