"""``StaticForward``: a batch as steps of compiled programs, each filled up to the shape of a bucket."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.engine.block_tables import BlockTables
from pageport.engine.bucket_plan import BucketPlan
from pageport.engine.forward import Computed, Forward
from pageport.sampling.batch import SamplingBatch
from pageport.scheduling.batch import Batch

# From hidden states to logits, row by row.
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` … ``start + count - 1`` of an entry's sequence."""

    entry: int
    row: int
    start: int
    count: int
    is_last: bool = True  # of the entry's in this batch


class StaticForward(Forward):
    """Decodes together, as many as the largest bucket takes; each prompt in pieces of its own.

    Whatever is not of a bucket's shape stays on the host: what is uploaded, and what comes back, has one.
    """

    def __init__(
        self,
        program: ModelProgram,
        plan: BucketPlan,
        tables: BlockTables,
        head: Head,
        *,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        """Bind a program whose buckets are all compiled.

        Args:
            head: computes logits of a whole bucket's hidden states, for prompts that are scored.
            device: where steps are handed over.
        """
        self._program = program
        self._plan = plan
        self._tables = tables
        self._head = head
        self._vocab_size = vocab_size
        self._device = device

    def run(self, batch: Batch, history: Tensor, sampling: SamplingBatch | None) -> Computed:
        self._tables.update(batch.block_updates)
        computed = _Programs(self._head)
        choosing = sampling if sampling is not None and self._can_choose(batch, sampling) else None
        samples = {entry: k for k, entry in enumerate(batch.sample_sources)} if choosing is not None else {}
        for pieces, bucket in self._steps(batch):
            # Which sample each request's last token is for; -1: for none.
            wanted = [samples.get(piece.entry, -1) if piece.is_last else -1 for piece in pieces]
            choice = self._choice(choosing, wanted, bucket) if choosing is not None and max(wanted) >= 0 else None
            output = self._program.step(self._step(pieces, bucket, history, choice))
            computed.add(pieces, output)
            if choice is not None:
                computed.add_choice(wanted, output)
        if samples:
            computed.settle_choice(len(samples))
        return computed

    def close(self) -> None:
        self._program.close()

    def _can_choose(self, batch: Batch, sampling: SamplingBatch) -> bool:
        """Tell whether the program may choose every token of a batch: one an entry, of logits as they are."""
        return (
            self._program.samples
            and not sampling.changes_logits
            and not sampling.logprob_rows.size
            and len(set(batch.sample_sources)) == len(batch.sample_sources)
        )

    def _steps(self, batch: Batch) -> list[tuple[list[Piece], Bucket]]:
        plan = self._plan
        entries = [
            Piece(entry, batch.rows[entry], batch.starts[entry], batch.counts[entry])
            for entry in range(len(batch.rows))
        ]
        decodes = [piece for piece in entries if piece.count == 1]
        steps = []
        for first in range(0, len(decodes), plan.max_decodes):
            part = decodes[first : first + plan.max_decodes]
            steps.append((part, plan.of_decodes(len(part), 1 + max(piece.start for piece in part))))
        for prompt in (piece for piece in entries if piece.count > 1):
            for done in range(0, prompt.count, plan.max_tokens):
                count = min(prompt.count - done, plan.max_tokens)
                is_last = done + count == prompt.count
                piece = Piece(prompt.entry, prompt.row, prompt.start + done, count, is_last)
                steps.append(([piece], plan.of_prompt(count, piece.start + count)))
        return steps

    def _step(self, pieces: list[Piece], bucket: Bucket, history: Tensor, choice: ChoiceBatch | None) -> ProgramStep:
        counts = np.array([piece.count for piece in pieces], np.int64)
        starts = np.array([piece.start for piece in pieces], np.int64)
        rows = np.array([piece.row for piece in pieces], np.int64)
        ends = np.cumsum(counts)
        num_tokens = int(ends[-1])
        token_rows = np.repeat(rows, counts)
        positions = np.zeros(bucket.tokens, np.int64)
        positions[:num_tokens] = np.arange(num_tokens) + np.repeat(starts - ends + counts, counts)
        token_ids = np.zeros(bucket.tokens, np.int64)
        token_ids[:num_tokens] = history.numpy()[token_rows, positions[:num_tokens]]
        seq_lens = np.zeros(bucket.requests, np.int32)
        seq_lens[: len(pieces)] = starts + counts
        last_tokens = np.zeros(bucket.requests, np.int64)
        last_tokens[: len(pieces)] = ends - 1
        return ProgramStep(
            bucket=bucket,
            token_ids=self._upload(token_ids),
            positions=self._upload(positions),
            seq_lens=self._upload(seq_lens),
            last_tokens=self._upload(last_tokens),
            block_tables=tuple(
                self._upload(table) for table in self._tables.padded(rows, seq_lens, bucket.requests, bucket.context)
            ),
            slot_mappings=tuple(
                self._upload(slots) for slots in self._tables.slots(token_rows, positions[:num_tokens], bucket.tokens)
            ),
            choice=choice,
        )

    def _choice(self, sampling: SamplingBatch, wanted: list[int], bucket: Bucket) -> ChoiceBatch:
        """Return how each request of a step chooses its token; who chooses none, or is not there, the likeliest."""
        sources = np.full(bucket.requests, -1, np.int64)
        sources[: len(wanted)] = wanted
        is_sampled = sources >= 0

        def take(values: Tensor, otherwise: float) -> Tensor:
            taken = values.numpy()[sources]
            taken[~is_sampled] = otherwise
            return self._upload(taken)

        return ChoiceBatch(
            temperatures=take(sampling.temperatures, 0.0),
            top_p=take(sampling.top_p, 1.0),
            min_p=take(sampling.min_p, 0.0),
            top_k=take(sampling.top_k, self._vocab_size),
            seeds=take(sampling.seeds, 0),
            positions=take(sampling.positions, 0),
            plain_rows=np.flatnonzero(np.isin(sources, sampling.plain_rows)),
            filtered_rows=np.flatnonzero(np.isin(sources, sampling.filtered_rows)),
        )

    def _upload(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a piece of an entry is found: tokens ``first`` … of an output, request ``request``."""

    output: ProgramOutput
    request: int
    first: int
    count: int


class _Programs(Computed):
    """What the steps of a batch left on the device, brought to the host piece by piece."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._places: dict[int, list[_Place]] = defaultdict(list)
        self._token_ids: dict[int, Tensor] = {}
        self._peaks: dict[int, Tensor] = {}
        self._choice: Choice | None = None
        # The last output whose tokens were scored, and their logits: a long prompt is read some rows at a time.
        self._scored: tuple[ProgramOutput, Tensor] | None = None

    def add(self, pieces: Sequence[Piece], output: ProgramOutput) -> None:
        """Note whose tokens a step had; a later step of the same entry had its next tokens."""
        first = 0
        for request, piece in enumerate(pieces):
            self._places[piece.entry].append(_Place(output, request, first, piece.count))
            first += piece.count

    def add_choice(self, wanted: Sequence[int], output: ProgramOutput) -> None:
        """Note the tokens a step chose, for the samples ``wanted`` by each of its requests."""
        assert output.choice is not None, "the program says that it samples, and chose no token"
        token_ids, peaks = (part.cpu() for part in output.choice)
        for request, sample in enumerate(wanted):
            if sample >= 0:
                self._token_ids[sample], self._peaks[sample] = token_ids[request], peaks[request]

    def settle_choice(self, num_samples: int) -> None:
        """Put the tokens of all steps in the order of the samples."""
        in_order = range(num_samples)
        self._choice = Choice(
            torch.stack([self._token_ids[k] for k in in_order]), torch.stack([self._peaks[k] for k in in_order])
        )

    @property
    def choice(self) -> Choice | None:
        return self._choice

    def last_logits(self, entries: Sequence[int]) -> Tensor:
        logits: dict[int, Tensor] = {}
        rows = []
        for entry in entries:
            place = self._places[entry][-1]
            key = id(place.output)
            if key not in logits:
                logits[key] = place.output.logits().cpu()
            rows.append(logits[key][place.request])
        return torch.stack(rows)

    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        return self._of_tokens(entry, start, stop, self._score)

    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        return self._of_tokens(entry, start, stop, lambda output: output.hidden())

    def _score(self, output: ProgramOutput) -> Tensor:
        if self._scored is None or self._scored[0] is not output:
            self._scored = output, self._head(output.hidden()).cpu()
        return self._scored[1]

    def _of_tokens(self, entry: int, start: int, stop: int, read: Callable[[ProgramOutput], Tensor]) -> Tensor:
        if start >= stop:
            return read(self._places[entry][0].output).cpu()[:0]
        parts, begin = [], 0
        for place in self._places[entry]:
            first, last = max(start - begin, 0), min(stop - begin, place.count)
            if first < last:
                parts.append(read(place.output).cpu()[place.first + first : place.first + last])
            begin += place.count
        return torch.cat(parts)
