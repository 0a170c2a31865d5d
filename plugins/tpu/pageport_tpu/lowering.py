"""What can be said of programs for TPUs where there is none.

``lower`` checks a program against the rules of Pallas for TPUs; ``compile_for`` runs the TPU compiler itself, which
comes with libtpu, for a chip that is not there.
"""

import os
from typing import Any

from jax.experimental import topologies

from pageport_tpu.program import StepShapes

# Else libtpu asks the cloud which chips this machine has, and refuses to be loaded by two processes at once.
_ONLY_COMPILES = ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD")


def lower(shapes: StepShapes) -> str:
    """Lower a step (``TpuProgram.shapes`` of a bucket) for a TPU and return the module's text."""
    text: str = shapes._replace(interpret=False).traced().lower(lowering_platforms=("tpu",)).as_text()
    return text


def compile_for(topology: str, shapes: StepShapes) -> Any:
    """Compile a step for the first chip of a topology ("v5e:2x2", say) and return the ``jax.stages.Compiled``."""
    for name in _ONLY_COMPILES:
        os.environ.setdefault(name, "1")
    chips = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    return shapes._replace(interpret=False).placed_on(chips[0]).traced().lower().compile()
