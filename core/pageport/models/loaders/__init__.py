"""Readers of weight files: safetensors, GGUF and, where allowed, pickles."""

from pageport.models.loaders.open import open_checkpoint

__all__ = ["open_checkpoint"]
