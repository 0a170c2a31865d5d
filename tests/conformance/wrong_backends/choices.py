"""Ways to choose tokens with one fault each."""

import dataclasses

import torch

from pageport.backend import Backend, Capabilities
from pageport.backend.choice import Choice
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


class Samples(CpuDevice):
    """Declares the op, in float32 alone, and leaves it to a subclass to get it wrong."""

    @property
    def capabilities(self) -> Capabilities:
        plain = super().capabilities
        return dataclasses.replace(
            plain,
            compute_dtypes=("float32",),
            preferred_dtype="float32",
            kv_dtypes=("float32",),
            features={**plain.features, "op:sample": 1},
        )

    def sample(self, logits, batch):
        return super().sample(logits, batch)


class ForgetsPositions(Samples):
    def sample(self, logits, batch):
        return super().sample(logits, dataclasses.replace(batch, positions=torch.zeros_like(batch.positions)))


class SeedsOf32Bits(Samples):
    def sample(self, logits, batch):
        return super().sample(logits, dataclasses.replace(batch, seeds=batch.seeds & 0xFFFFFFFF))


class NeverCutsTheTail(Samples):
    def sample(self, logits, batch):
        return super().sample(logits, dataclasses.replace(batch, top_p=torch.ones_like(batch.top_p)))


class TakesTheLastOfEquals(Samples):
    def sample(self, logits, batch):
        token_ids, peaks = super().sample(logits, batch)
        last = logits.shape[1] - 1 - logits.flip(1).argmax(-1)
        return Choice(torch.where(batch.temperatures == 0, last, token_ids), peaks)


class SeedsByRow(Samples):
    def sample(self, logits, batch):
        rows = torch.arange(len(batch.seeds))
        return super().sample(logits, dataclasses.replace(batch, seeds=batch.seeds + rows))


class OverlooksNaN(Samples):
    def sample(self, logits, batch):
        return super().sample(logits.nan_to_num(nan=-torch.inf), batch)


class DividesLogitsInPlace(Samples):
    def sample(self, logits, batch):
        choice = super().sample(logits, batch)
        logits.div_(batch.temperatures.clamp(min=1e-5)[:, None])
        return choice


def backend_of(device: type[CpuDevice]) -> type[Backend]:
    class WrongBackend(CpuBackend):
        def open(self, ordinal, options, rank=None):
            return device()

    return WrongBackend


CORRECT = (("samples", backend_of(Samples), Level.OPS),)
WRONG = tuple(
    (name, backend_of(device), Level.OPS, words)
    for name, device, words in (
        ("forgets positions", ForgetsPositions, "positions are not used"),
        ("seeds of 32 bits", SeedsOf32Bits, "half of the seed is not used"),
        ("never cuts the tail", NeverCutsTheTail, "top_p is not used"),
        ("takes the last of equals", TakesTheLastOfEquals, "sample, greedy (float32"),
        ("seeds by row", SeedsByRow, "a row in another order gets another token"),
        ("overlooks NaN", OverlooksNaN, "peaks are not NaN exactly in the rows with NaN"),
        ("divides logits in place", DividesLogitsInPlace, "sample changes the logits"),
    )
)
