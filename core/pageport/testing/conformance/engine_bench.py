"""``EngineBench``: the tiny models that fit a device, their references, and engines of them on it."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pageport.backend.capabilities import Capabilities
from pageport.backend.device import Device
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.engine_reference import EIGHT_BIT_TOLERANCES, TOLERANCES, EngineReference, Judge
from pageport.testing.conformance.kv_rounding import EIGHT_BITS, rotation_of_keys
from pageport.testing.conformance.tiny_engine import Answer, TinyEngine, TinyModel
from pageport.testing.tiny_model import BOS


class EngineBench:
    """Sizes follow the declared capabilities: prompts are so long that they cross block edges, whatever a block is."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.block_size = min(capabilities.block_sizes, key=lambda size: abs(size - 16))
        # Whole blocks of at least 16 tokens: prompts are a few of these, give or take a token.
        self.span = -(-16 // self.block_size) * self.block_size
        self.dtype = "float32" if "float32" in capabilities.compute_dtypes else capabilities.preferred_dtype
        head_size = min(capabilities.head_sizes, default=8)
        max_positions = max(256, 12 * self.span)
        self.llama = TinyModel(head_size=head_size, max_positions=max_positions)
        self.gpt2 = TinyModel(architecture="gpt2", head_size=head_size, max_positions=max_positions)
        self.mistral = TinyModel(head_size=head_size, max_positions=max_positions, sliding_window=self.span)
        self._references: dict[tuple[TinyModel, str], EngineReference] = {}

    @property
    def has_sliding_window(self) -> bool:
        capabilities = self.capabilities
        return "sliding" in capabilities.kv_kinds and "sliding_window" in capabilities.attention_variants

    def num_blocks(self, spans: int) -> int:
        return spans * self.span // self.block_size

    def kv_dtype(self, dtype: str) -> str:
        """Return what keys and values are kept in beside this compute dtype."""
        kv_dtypes = self.capabilities.kv_dtypes
        return dtype if dtype in kv_dtypes else next(name for name in kv_dtypes if name in TOLERANCES)

    def open(self, device: Device, model: TinyModel, **settings: Any) -> TinyEngine:
        """Build an engine; ``settings`` as in ``pageport.config``."""
        dtype = settings.get("dtype", self.dtype)
        usual = {
            "dtype": dtype,
            "kv_cache_dtype": self.kv_dtype(dtype),
            "block_size": self.block_size,
            "num_kv_blocks": self.num_blocks(128),
            "max_num_batched_tokens": 4 * self.span,
        }
        return TinyEngine(device, model, **{**usual, **settings})

    def reference(self, model: TinyModel, kv_dtype: str = "float32") -> EngineReference:
        """Return the model on the reference device with a cache of this dtype, built once."""
        if (model, kv_dtype) not in self._references:
            rotates_keys = rotation_of_keys(kv_dtype) in self.capabilities.features
            self._references[model, kv_dtype] = EngineReference(model, kv_dtype, rotates_keys=rotates_keys)
        return self._references[model, kv_dtype]

    def compare(self, context: Context, model: TinyModel, answers: Iterable[Answer], hint: str, *dtypes: str) -> None:
        """Compare answers with the reference and leave the count on the score card.

        Args:
            dtypes: in use; default: what engines here compute and keep keys and values in.
        """
        used = dtypes or (self.dtype, self.kv_dtype(self.dtype))
        tolerances = {**TOLERANCES, **EIGHT_BIT_TOLERANCES}
        judge = Judge(
            reference=self.reference(model, next((dtype for dtype in used if dtype in EIGHT_BITS), "float32")),
            dtype=max(used, key=lambda dtype: tolerances[dtype]),
            block_size=self.block_size,
            where=model.architecture if model.sliding_window is None else "mistral",
            hint=hint,
        )
        tally = judge.compare(answers)
        context.measured = f"{tally.tokens} tokens" + (f", {tally.near_ties} near ties" if tally.near_ties else "")


def random_prompt(generator: np.random.Generator, length: int) -> list[int]:
    """Return ``length`` tokens that are no special ones."""
    return [int(token) for token in generator.integers(0, BOS, max(1, length))]
