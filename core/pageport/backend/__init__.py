"""What a backend implements. Importing this package imports no torch; ``pageport.backend.device`` does."""

from pageport.backend.capabilities import Capabilities
from pageport.backend.description import (
    Activation,
    AttentionDescription,
    DecoderDescription,
    LayerDescription,
    MLPDescription,
    NormDescription,
    RopeDescription,
)
from pageport.backend.graph import Graph, StepSize
from pageport.backend.hook import hookimpl, hookspec, pageport_backends
from pageport.backend.interface import INTERFACE, Backend, Deviation, Probe, Rank
from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.weights import StoredTensor, WeightSpec

__all__ = [
    "INTERFACE",
    "Activation",
    "AttentionDescription",
    "AttentionParams",
    "Backend",
    "Capabilities",
    "DecoderDescription",
    "Deviation",
    "Graph",
    "KVSpec",
    "LayerDescription",
    "MLPDescription",
    "Memory",
    "NormDescription",
    "Probe",
    "Rank",
    "RopeDescription",
    "StepSize",
    "StoredTensor",
    "WeightSpec",
    "hookimpl",
    "hookspec",
    "pageport_backends",
]
