"""``WatchedProgram``: a program in torch, held to what a graph compiled ahead of time can do."""

from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.testing.static_watch import StepWatch


class WatchedProgram(ModelProgram):
    """The inherited program; a step of it is refused whatever ``StepWatch`` refuses."""

    def __init__(self, program: ModelProgram) -> None:
        self.samples = program.samples
        self._program = program
        # Steps whose tokens core chooses may consist of other ops.
        self._watches: dict[tuple[Bucket, bool], StepWatch] = {}

    def compile(self, bucket: Bucket) -> None:
        self._program.compile(bucket)

    def step(self, step: ProgramStep) -> ProgramOutput:
        key = step.bucket, step.choice is None
        watch = self._watches.setdefault(key, StepWatch(step.bucket))
        with watch.step():
            return self._program.step(step)

    def close(self) -> None:
        self._program.close()
