"""``CheckedProgram``: any ``ModelProgram``, with an eye on the shapes that core asks it for."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pageport.backend.capabilities import Capabilities
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.device import Device
from pageport.backend.program import Bucket, Compilation, ModelProgram, ProgramOutput, ProgramStep
from pageport.errors import BackendError
from pageport.testing.static_contract import GroupSize, check_bucket, check_declared, check_step


@dataclass
class ProgramRecord:
    """What became of one program: the shapes it was built for, what was compiled of them and what ran."""

    buckets: tuple[Bucket, ...]
    compilations: list[Compilation] = field(default_factory=list)
    steps: Counter[Bucket] = field(default_factory=Counter)

    @property
    def compiled(self) -> list[Bucket]:
        """Return what was compiled, in this order."""
        return [compilation.bucket for compilation in self.compilations]


class CheckedProgram(ModelProgram):
    """Refuses a shape that was not declared or compiled, a late compilation, and tensors that do not fit the shape."""

    def __init__(self, program: ModelProgram, buckets: Sequence[Bucket], groups: Sequence[GroupSize]) -> None:
        self.samples = program.samples
        self.record = ProgramRecord(tuple(buckets))
        self._program = program
        self._groups = tuple(groups)

    def compile(self, bucket: Bucket) -> None:
        if bucket not in self.record.buckets:
            raise BackendError(f"{bucket} is to be compiled, but the model was built for {self.record.buckets}.")
        if self.record.steps:
            raise BackendError(f"{bucket} is to be compiled after the first step; warm every shape up before it.")
        start = time.perf_counter()
        self._program.compile(bucket)
        self.record.compilations.append(Compilation(bucket=bucket, seconds=time.perf_counter() - start))

    def step(self, step: ProgramStep) -> ProgramOutput:
        if step.bucket not in self.record.compiled:
            raise BackendError(f"A step has the shape {step.bucket}, which was not compiled.")
        check_step(step, self._groups)
        output = self._program.step(step)
        self.record.steps[step.bucket] += 1
        return output

    def close(self) -> None:
        self._program.close()


def check_program(
    program: ModelProgram, buckets: Sequence[Bucket], groups: Sequence[GroupSize], capabilities: Capabilities
) -> CheckedProgram:
    """Put a program under check.

    Raises:
        BackendError: core asks for a shape that the capabilities do not declare.
    """
    for bucket in buckets:
        check_bucket(bucket, groups)
        check_declared(bucket, capabilities, groups)
    return CheckedProgram(program, buckets, groups)


@contextmanager
def checked_programs(device: Device) -> Iterator[list[ProgramRecord]]:
    """Check whatever programs ``device`` builds meanwhile, and yield their records."""
    records: list[ProgramRecord] = []
    build = device.build_model

    def build_checked(
        description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any], buckets: Sequence[Bucket]
    ) -> ModelProgram:
        groups = [GroupSize(spec.block_size) for spec in description.cache_groups]
        checked = check_program(build(description, weights, pools, buckets), buckets, groups, device.capabilities)
        records.append(checked.record)
        return checked

    setattr(device, "build_model", build_checked)  # noqa: B010 - a method is replaced
    try:
        yield records
    finally:
        delattr(device, "build_model")
