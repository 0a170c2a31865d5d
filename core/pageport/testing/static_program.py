"""``CheckedProgram``: any ``ModelProgram``, held to what a device that compiles ahead of time can do."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.backend.reference.static_decoder import StaticProgram
from pageport.errors import BackendError
from pageport.testing.static_contract import GroupSize, check_bucket, check_step
from pageport.testing.static_watch import StepWatch


@dataclass
class ProgramRecord:
    """What became of one program: the shapes it was built for, what was compiled of them and what ran."""

    buckets: tuple[Bucket, ...]
    compiled: list[Bucket] = field(default_factory=list)
    steps: Counter[Bucket] = field(default_factory=Counter)


class CheckedProgram(ModelProgram):
    """Refuses a shape that was not declared, a compilation after the first step, and whatever ``StepWatch`` refuses."""

    samples: ClassVar[bool] = StaticProgram.samples

    def __init__(self, program: ModelProgram, buckets: Sequence[Bucket], groups: Sequence[GroupSize]) -> None:
        for bucket in buckets:
            check_bucket(bucket, groups)
        self.record = ProgramRecord(tuple(buckets))
        self._program = program
        self._groups = tuple(groups)
        # Steps whose tokens core chooses may consist of other ops.
        self._watches: dict[tuple[Bucket, bool], StepWatch] = {}

    def compile(self, bucket: Bucket) -> None:
        if bucket not in self.record.buckets:
            raise BackendError(f"{bucket} is to be compiled, but the model was built for {self.record.buckets}.")
        if self.record.steps:
            raise BackendError(f"{bucket} is to be compiled after the first step; warm every shape up before it.")
        self._program.compile(bucket)
        self.record.compiled.append(bucket)

    def step(self, step: ProgramStep) -> ProgramOutput:
        if step.bucket not in self.record.compiled:
            raise BackendError(f"A step has the shape {step.bucket}, which was not compiled.")
        check_step(step, self._groups)
        key = step.bucket, step.choice is None
        watch = self._watches.setdefault(key, StepWatch(step.bucket))
        with watch.step():
            output = self._program.step(step)
        self.record.steps[step.bucket] += 1
        return output

    def close(self) -> None:
        self._program.close()
