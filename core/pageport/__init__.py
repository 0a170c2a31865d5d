"""Serve large language models on whatever hardware is there."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pageport.engine.llm import LLM
    from pageport.engine.outputs import CompletionOutput, RequestOutput
    from pageport.sampling.beam import BeamSearchParams
    from pageport.sampling.params import SamplingParams
    from pageport.sampling.structured import StructuredOutput

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutput",
    "__version__",
]

_HOMES = {
    "LLM": "pageport.engine.llm",
    "BeamSearchParams": "pageport.sampling.beam",
    "CompletionOutput": "pageport.engine.outputs",
    "RequestOutput": "pageport.engine.outputs",
    "SamplingParams": "pageport.sampling.params",
    "StructuredOutput": "pageport.sampling.structured",
}


def __getattr__(name: str) -> Any:
    # Lazy: `pageport --version` and plugins must not pay for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'pageport' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
