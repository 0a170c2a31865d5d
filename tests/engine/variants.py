"""Tiny models of every architecture as folders that an engine can open."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from pageport.testing.tiny_model import BOS, EOS, VOCAB_SIZE, byte_tokenizer

from ..models.conftest import VARIANTS, WINDOWED, make_model

__all__ = ["VARIANTS", "WINDOWED", "write_variant"]


def write_variant(name: str, folder: Path) -> Any:
    """Write the folder of a variant, with a byte tokenizer, and return transformers' model of the same weights."""
    architecture, fields = VARIANTS[name]
    model = make_model(architecture, {**fields, "vocab_size": VOCAB_SIZE, "bos_token_id": BOS, "eos_token_id": EOS})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(model.checkpoint.config), default=str))
    tensors = {name: tensor.clone() for name, tensor in model.checkpoint.tensors.items()}
    save_file(tensors, str(folder / "model.safetensors"))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model.reference
