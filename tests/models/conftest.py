"""Tiny random models of every architecture, and a paged cache to run them in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device
from pageport.backend.op_table import OpTable, compile_ops
from pageport.backend.weights import StoredTensor
from pageport.errors import CorruptWeights
from pageport.models.checkpoint import Checkpoint
from pageport.models.decoder import Decoder
from pageport.models.inputs import ModelInputs
from pageport.models.registry import decoder_spec
from pageport.models.spec import BiasPart, DecoderSpec, MatrixPart, RowOrder, cache_groups
from pageport.models.weights import load_decoder_weights
from pageport_cpu.plugin import CpuBackend

VOCAB_SIZE = 99
_LLAMA = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
_GEMMA = {**_LLAMA, "hidden_size": 64, "head_dim": 24, "num_hidden_layers": 3, "tie_word_embeddings": True}
_GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 160}
_NEOX = {**{k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"}, "hidden_size": 64}
_LOCAL, _GLOBAL = "sliding_attention", "full_attention"

# Variant → architecture, and the config's fields.
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _LLAMA),
    "llama-biased-tied-wide-heads": (
        "LlamaForCausalLM",
        {**_LLAMA, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 20},
    ),
    "mistral-window": ("MistralForCausalLM", {**_LLAMA, "sliding_window": 16}),
    "mistral": ("MistralForCausalLM", {**_LLAMA, "sliding_window": None}),
    "gpt2-square": ("GPT2LMHeadModel", {**_GPT2, "n_inner": 48}),
    "gpt2-layer-scaled-untied": (
        "GPT2LMHeadModel",
        {**_GPT2, "scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False, "activation_function": "gelu"},
    ),
    "qwen2": ("Qwen2ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {**_LLAMA, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**_LLAMA, "head_dim": 16}),
    "qwen3-biased-window": (
        "Qwen3ForCausalLM",
        {
            **_LLAMA,
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": [_LOCAL, _GLOBAL],
        },
    ),
    "gemma": ("GemmaForCausalLM", _GEMMA),
    "gemma2": (
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "layer_types": [_LOCAL, _GLOBAL, _LOCAL],
            "rope_parameters": {
                _GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 50_000.0},
                _LOCAL: {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "phi3-partial": (
        "Phi3ForCausalLM",
        {
            **_LLAMA,
            "sliding_window": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "phi3": ("Phi3ForCausalLM", _LLAMA),
    "gpt-neox-parallel": ("GPTNeoXForCausalLM", _NEOX),
    "gpt-neox-sequential-unbiased": (
        "GPTNeoXForCausalLM",
        {
            **_NEOX,
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": {"rope_type": "default", "rope_theta": 2_000.0, "partial_rotary_factor": 0.5},
        },
    ),
}
WINDOWED = ("mistral-window", "qwen2-window", "qwen3-biased-window", "gemma2", "gemma3", "phi3-partial")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, values in (("variant", tuple(VARIANTS)), ("windowed_variant", WINDOWED)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values)


@dataclass
class StateDictCheckpoint(Checkpoint):
    """Tensors in memory, presented as a file's."""

    config: Mapping[str, Any]
    tensors: dict[str, Tensor]
    path: Path = Path("tiny/model.safetensors")
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    scheme: str = "f32"

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def matrix(self, part: MatrixPart, in_features: int) -> StoredTensor:
        stored = self.tensors[part.name]
        matrix = _reordered(stored.t() if part.transposed else stored, part.row_order)
        assert matrix.shape == (part.rows, in_features), (part, matrix.shape)
        return StoredTensor(
            scheme="f32", shape=(part.rows, in_features), read=lambda: {"weight": matrix}, source=part.name
        )

    def vector(self, part: BiasPart) -> Tensor:
        stored = self.tensors[part.name]
        if stored.shape != (part.rows,):
            raise CorruptWeights(f"{part.name} has shape {tuple(stored.shape)}")
        return _reordered(stored, part.row_order).float()


@dataclass
class TinyModel:
    """A random transformers model and what a folder of it would hold."""

    reference: Any
    checkpoint: StateDictCheckpoint

    @property
    def spec(self) -> DecoderSpec:
        return decoder_spec(self.checkpoint.config, self.checkpoint.names())

    def reference_logits(self, token_ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.reference(torch.tensor([token_ids])).logits[0]
        return logits


class PagedModel:
    """Our decoder over real pools whose blocks are handed out in a scrambled order."""

    def __init__(
        self, device: Device, ops: OpTable, spec: DecoderSpec, decoder: Decoder, block_size: int, dtype: str
    ) -> None:
        self.decoder = decoder
        self._block_size = block_size
        self._specs = [group.kv_spec(block_size, dtype) for group in cache_groups(spec)]
        num_blocks = 2048 // block_size
        self.pools = [device.allocate_kv(kv_spec, num_blocks) for kv_spec in self._specs]
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(5)).tolist()
        self._free = [order[group:] + order[:group] for group in range(len(self.pools))]
        self._plan = device.plan

    def new_blocks(self, num_tokens: int) -> list[list[int]]:
        """Take blocks for a sequence, one list a cache group."""
        count = -(-num_tokens // self._block_size)
        return [[free.pop() for _ in range(count)] for free in self._free]

    def step(self, rows: Sequence[tuple[Sequence[int], int, list[list[int]]]]) -> Tensor:
        """Compute rows of (token ids, position of the first, block ids a group) and return all their logits."""
        return self.decoder.logits(self.hidden(rows)).clone()

    def hidden(
        self, rows: Sequence[tuple[Sequence[int], int, list[list[int]]]], wanted: Tensor | None = None
    ) -> Tensor:
        """Compute rows as ``step`` does and return the decoder's own view of the hidden states."""
        inputs, batches = self.inputs(rows)
        return self.decoder.hidden(inputs, self.pools, batches, wanted)

    def inputs(
        self, rows: Sequence[tuple[Sequence[int], int, list[list[int]]]]
    ) -> tuple[ModelInputs, list[AttentionBatch]]:
        token_ids = torch.tensor([token for tokens, _, _ in rows for token in tokens])
        positions = torch.tensor([start + i for tokens, start, _ in rows for i in range(len(tokens))])
        batches = [self._batch(rows, group) for group in range(len(self.pools))]
        return ModelInputs(token_ids=token_ids, positions=positions), batches

    def run(
        self, token_ids: Sequence[int], blocks: list[list[int]], *, start: int = 0, chunk: int | None = None
    ) -> Tensor:
        """Compute positions ``start`` … in chunks and return their logits."""
        size = chunk or max(len(token_ids), 1)
        chunks = [self.step([(token_ids[at : at + size], at, blocks)]) for at in range(start, len(token_ids), size)]
        return torch.cat(chunks)

    def _batch(self, rows: Sequence[tuple[Sequence[int], int, list[list[int]]]], group: int) -> AttentionBatch:
        size = self._block_size
        lengths = [len(tokens) for tokens, _, _ in rows]
        seq_lens = [start + len(tokens) for tokens, start, _ in rows]
        tables = [blocks[group] for _, _, blocks in rows]
        width = max(map(len, tables))
        table = np.array([row + [0] * (width - len(row)) for row in tables], dtype=np.int32)
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        slots = [
            blocks[group][position // size] * size + position % size
            for tokens, start, blocks in rows
            for position in range(start, start + len(tokens))
        ]
        batch = AttentionBatch(
            num_requests=len(rows),
            num_tokens=sum(lengths),
            max_query_len=max(lengths),
            max_seq_len=max(seq_lens),
            num_decodes=0,
            query_start_loc=torch.from_numpy(starts),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_table=torch.from_numpy(table),
            slot_mapping=torch.tensor(slots),
            host=AttentionMirror(
                query_start_loc=starts, seq_lens=np.array(seq_lens, dtype=np.int32), block_table=table
            ),
        )
        batch.plan = self._plan(self._specs[group], batch)
        return batch


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    # Threads that wait for each other cost more than matrices this small.
    opened = CpuBackend().open(0, {"threads": "1"})
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def ops(device: Device) -> OpTable:
    return compile_ops(device)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], TinyModel]:
    """Return the model of a variant, made once."""
    return cache(lambda variant: make_model(*VARIANTS[variant]))


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., TinyModel]:
    """Return a maker of models from an architecture and more fields than the plain LLaMA-like config."""
    return lambda architecture, **fields: make_model(architecture, {**_LLAMA, **fields})


@pytest.fixture(scope="session")
def compared_architectures() -> set[str]:
    """Return every architecture that has a variant."""
    return {architecture for architecture, _ in VARIANTS.values()}


@pytest.fixture
def paged(device: Device, ops: OpTable) -> Callable[..., PagedModel]:
    """Return a maker of paged models: by default as the checkpoint says, float32, blocks of 16 tokens."""

    def make(
        tiny: TinyModel,
        *,
        spec: DecoderSpec | None = None,
        block_size: int = 16,
        dtype: str = "float32",
        max_model_len: int | None = None,
        ops: OpTable = ops,
    ) -> PagedModel:
        spec = spec or tiny.spec
        decoder = Decoder(
            spec,
            load_decoder_weights(spec, tiny.checkpoint, device, dtype),
            ops,
            dtype=getattr(torch, dtype),
            device=device.torch_device,
            max_tokens=512,
            max_model_len=max_model_len,
        )
        return PagedModel(device, ops, spec, decoder, block_size, dtype)

    return make


@pytest.fixture(scope="session")
def tokens() -> Callable[..., list[int]]:
    """Return a maker of random prompts."""

    def make(count: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, VOCAB_SIZE, (count,), generator=generator).tolist()

    return make


def make_model(architecture: str, fields: Mapping[str, Any]) -> TinyModel:
    """Make a transformers model whose every parameter is random, far from its usual start value."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**fields, attn_implementation="eager")
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    is_gemma = architecture.startswith("Gemma")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.dim() == 1 else 0.25
            parameter.normal_(0.0, spread, generator=generator)
            if parameter.dim() == 1 and name.endswith("weight") and not is_gemma:
                parameter.add_(1.0)
    stored = dict(model.state_dict())
    if config.tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    return TinyModel(model, StateDictCheckpoint({**config.to_dict(), "architectures": [architecture]}, stored))


def _reordered(rows: Tensor, order: RowOrder | None) -> Tensor:
    if order is None:
        return rows
    axes = len(order.shape)
    return rows.unflatten(0, order.shape).permute(*order.axes, *range(axes, axes + rows.dim() - 1)).flatten(0, axes - 1)
