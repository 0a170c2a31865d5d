"""What a backend implements. Importing this package imports no torch; ``pageport.backend.device`` does."""

from pageport.backend.capabilities import Capabilities
from pageport.backend.graph import Graph
from pageport.backend.hook import hookimpl, hookspec, pageport_backends
from pageport.backend.interface import INTERFACE, Backend, Deviation, Probe, Rank
from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.weights import StoredTensor, WeightSpec

__all__ = [
    "INTERFACE",
    "AttentionParams",
    "Backend",
    "Capabilities",
    "Deviation",
    "Graph",
    "KVSpec",
    "Memory",
    "Probe",
    "Rank",
    "StoredTensor",
    "WeightSpec",
    "hookimpl",
    "hookspec",
    "pageport_backends",
]
