"""``Admission``: whether a request can ever fit, and whether one fits now. Block arithmetic only."""

from collections.abc import Iterable

from pageport.cache.block_manager import BlockManager
from pageport.errors import InvalidParameter, RequestTooLong
from pageport.scheduling.request import Request, Sequence, Status
from pageport.scheduling.roster import Roster

# Of each cache group, 1 / this many blocks stay free when something starts beside running sequences: they grow.
_HEADROOM = 100


class Admission:
    """Guards the cache: refuses what can never fit, and holds back what does not fit now.

    A beam group is never preempted, so the blocks it may still come to need are kept back from everyone else.
    """

    def __init__(self, roster: Roster, blocks: BlockManager) -> None:
        self._roster = roster
        self._blocks = blocks
        self._total = blocks.usage().total
        self._groups = range(len(self._total))

    # Ever

    def require_possible(self, request: Request, token_limit: int) -> None:
        """Refuse a request that could not even run alone.

        Raises:
            RequestTooLong: the context or the cache is too small for it; says by how much.
            InvalidParameter: it has no prompt, or more beams than there are rows.
        """
        num_prompt, capacity = len(request.prompt_token_ids), self._blocks.max_sequence_tokens
        if num_prompt == 0:
            raise InvalidParameter("The prompt has no tokens. Send at least one.", parameter="prompt")
        if token_limit <= num_prompt:
            raise RequestTooLong(
                f"The prompt has {num_prompt} tokens and the context ends at {token_limit}: no room for one output "
                f"token. Send at most {token_limit - 1} prompt tokens.",
                parameter="prompt",
            )
        if token_limit > capacity:
            raise RequestTooLong(
                f"Prompt ({num_prompt}) and max_tokens ({token_limit - num_prompt}) add up to {token_limit} tokens; "
                f"the KV cache holds {capacity} of one sequence. Lower max_tokens to "
                f"{max(0, capacity - num_prompt)}, shorten the prompt, or give the cache more memory.",
                parameter="max_tokens",
            )
        if request.beam is not None:
            self._require_beams(request, token_limit)

    def _require_beams(self, request: Request, token_limit: int) -> None:
        width, num_rows = request.num_sequences, self._roster.rows.num_rows
        if width > num_rows:
            raise InvalidParameter(
                f"beam_width is {width}; at most {num_rows} sequences run at once here. Lower beam_width, or raise "
                f"--max-num-seqs and --max-num-batched-tokens.",
                parameter="beam_width",
            )
        for group, (need, total) in enumerate(zip(self.beam_blocks(request, token_limit), self._total, strict=True)):
            if need > total:
                raise RequestTooLong(
                    f"{width} beams of {token_limit} tokens (prompt {len(request.prompt_token_ids)}, shared) may need "
                    f"{need} blocks of cache group {group}, which has {total}. Lower beam_width or max_tokens.",
                    parameter="beam_width",
                )

    def beam_blocks(self, request: Request, token_limit: int) -> tuple[int, ...]:
        """Return the most blocks of each group that a beam search can hold: the prompt's full ones once, the rest of
        every beam by itself."""
        num_prompt = len(request.prompt_token_ids)
        most = []
        for group in self._groups:
            each = self._blocks.blocks_for(group, token_limit)
            shared = self._blocks.blocks_for(group, num_prompt + 1) - 1
            # A window releases shared blocks, and its bound stops growing: assume nothing is shared there.
            if self._blocks.blocks_for(group, 1 << 40) <= self._total[group]:
                shared = 0
            most.append(shared + request.num_sequences * (each - shared))
        return tuple(most)

    # Now

    def room(self) -> list[int]:
        """Return the blocks of each group that are available and not kept back for beams."""
        free = list(self._blocks.free_blocks())
        for beams in self._roster.beam_groups.values():
            sequences = [beam.sequence for beam in beams.beams]
            for group in self._groups:
                held = {b for s in sequences for b in self._blocks.block_table(s.sequence_id, group) if b >= 0}
                free[group] -= max(0, beams.max_blocks[group] - len(held))
        return free

    def can_grow(self, num_tokens: int) -> bool:
        """Say whether ``num_tokens`` more of one sequence leave the beams theirs; at worst one block is copied."""
        if not self._roster.beam_groups:
            return True
        room = self.room()
        return all(self._blocks.blocks_for(group, num_tokens) + 1 <= room[group] for group in self._groups)

    def fits(self, sequence: Sequence, prefilling: Iterable[Sequence]) -> bool:
        """Say whether an opened or swapped sequence can start: its tokens and one more, beside prompts in progress."""
        is_alone = not len(self._roster.running) and not self._roster.leaving
        if is_alone and not self._roster.beam_groups:
            return True
        room = self._room_beside(prefilling)
        for group in self._groups:
            headroom = 0 if is_alone else self._headroom(group)
            if self._missing(sequence, group, sequence.num_tokens + 1) + headroom > room[group]:
                return False
        return True

    def fits_without(self, sequence: Sequence, victims: Iterable[Sequence]) -> bool:
        """Say whether a waiting sequence could start if ``victims`` gave up theirs; prefix hits do not count."""
        gone = set(victims)
        if self._roster.rows.num_available + len(gone) < self._roster.rows_needed(sequence):
            return False
        staying = [s for s in self._roster.running if s not in gone]
        room = self._room_beside(s for s in staying if s.num_tokens - s.num_computed > 1)
        for victim in gone:
            for group in self._groups:
                room[group] += self._held(victim, group)
        if sequence.request.beam is not None:
            needed = self.beam_blocks(sequence.request, sequence.token_limit)
        else:
            needed = tuple(
                self._blocks.blocks_for(g, sequence.num_tokens + 1) + (self._headroom(g) if staying else 0)
                for g in self._groups
            )
        return all(need <= available for need, available in zip(needed, room, strict=True))

    def beams_fit(self, needed: tuple[int, ...], prefilling: Iterable[Sequence]) -> bool:
        """Say whether a beam search that may hold ``needed`` blocks can start."""
        return all(need <= room for need, room in zip(needed, self._room_beside(prefilling), strict=True))

    def _room_beside(self, prefilling: Iterable[Sequence]) -> list[int]:
        """Return the room that is left when the prompts in progress are completed."""
        room = self.room()
        for other in prefilling:
            # What a beam search still needs is kept back already.
            if other.request.beam is None:
                for group in self._groups:
                    room[group] -= self._missing(other, group, other.num_tokens + 1)
        return room

    def _headroom(self, group: int) -> int:
        return max(1, self._total[group] // _HEADROOM)

    def _missing(self, sequence: Sequence, group: int, num_tokens: int) -> int:
        """Return how many blocks ``sequence`` lacks of what ``num_tokens`` may take."""
        return max(0, self._blocks.blocks_for(group, num_tokens) - self._held(sequence, group))

    def _held(self, sequence: Sequence, group: int) -> int:
        if sequence.status is Status.SWAPPED:
            return 0
        return sum(block_id >= 0 for block_id in self._blocks.block_table(sequence.sequence_id, group))
