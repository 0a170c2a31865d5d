"""Any order of open, run, commit, fork, truncate, free and swap keeps every count right and every token readable."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pageport.cache.layout import GroupLayout

CONFIGURATIONS = [
    (GroupLayout(num_blocks=20, block_size=4, num_host_blocks=8),),
    (
        GroupLayout(num_blocks=24, block_size=4, num_host_blocks=9),
        GroupLayout(num_blocks=12, block_size=4, sliding_window=6, num_host_blocks=6),
    ),
    (GroupLayout(num_blocks=14, block_size=4, sliding_window=9, num_host_blocks=5),),
    (
        GroupLayout(num_blocks=24, block_size=2, sliding_window=5, num_host_blocks=12),
        GroupLayout(num_blocks=10, block_size=6, num_host_blocks=4),
    ),
    (
        GroupLayout(num_blocks=16, block_size=4, sliding_window=1, num_host_blocks=4),
        GroupLayout(num_blocks=16, block_size=4, sliding_window=8, num_host_blocks=7),
    ),
    (GroupLayout(num_blocks=9, block_size=1),),
    (GroupLayout(num_blocks=7, block_size=4, sliding_window=3, num_host_blocks=3),),
]
KEYS: list[dict[str, str]] = [{}, {}, {}, {"salt": "x"}, {"adapter": "x"}]
# Few different prompts, so that prefixes meet.
PROMPT = st.builds(
    lambda family, length, tail: [family] * length + tail,
    st.integers(0, 1),
    st.integers(1, 26),
    st.lists(st.integers(0, 1), max_size=3),
)
PICK = st.integers(0, 1000)


class CacheMachine(RuleBasedStateMachine):
    """Drives the make-believe device; commits may lag behind what is run, as with steps in flight."""

    def __init__(self, driver: Callable[..., Any]) -> None:
        super().__init__()
        self.driver = driver
        self.next_id = 0

    @initialize(layouts=st.sampled_from(CONFIGURATIONS), caching=st.sampled_from([True, True, True, False]))
    def start(self, layouts: tuple[GroupLayout, ...], caching: bool) -> None:
        self.cache = self.driver(*layouts, enable_prefix_caching=caching)
        self.committed: dict[int, int] = {}

    def has_sequences(self) -> bool:
        return bool(self.committed)

    def is_any_on_device(self) -> bool:
        return bool(self.committed.keys() - self.cache.swapped)

    def pick(self, number: int) -> int:
        return sorted(self.committed)[number % len(self.committed)]

    def pick_on_device(self, number: int) -> int:
        ids = sorted(self.committed.keys() - self.cache.swapped)
        return ids[number % len(ids)]

    @rule(
        prompt=PROMPT,
        keys=st.sampled_from(KEYS),
        read_prefix=st.sampled_from([True, True, True, False]),
        chunk=st.sampled_from([0, 3, 30]),
    )
    def open(self, prompt: list[int], keys: dict[str, str], read_prefix: bool, chunk: int) -> None:
        if len(self.committed) >= 6:
            self.free(0)
        sequence_id = self.next_id
        cached = self.cache.open(sequence_id, prompt, keys, read_prefix=read_prefix)
        assert cached < len(prompt)
        assert read_prefix or cached == 0
        self.committed[sequence_id] = cached
        self.next_id += 1
        if chunk:
            self.run_to(sequence_id, min(cached + chunk, len(prompt)), commit=True)

    @precondition(is_any_on_device)
    @rule(number=PICK, count=st.integers(1, 30), commit=st.booleans())
    def run(self, number: int, count: int, commit: bool) -> None:
        sequence_id = self.pick_on_device(number)
        tokens = self.cache.tokens[sequence_id]
        if self.cache.computed[sequence_id] == len(tokens):
            tokens.append(count % 2)
        self.run_to(sequence_id, min(self.cache.computed[sequence_id] + count, len(tokens)), commit)

    @precondition(is_any_on_device)
    @rule(number=PICK, new=st.lists(st.integers(0, 1), min_size=1, max_size=9), commit=st.booleans())
    def decode(self, number: int, new: list[int], commit: bool) -> None:
        sequence_id = self.pick_on_device(number)
        if not self.run_to(sequence_id, len(self.cache.tokens[sequence_id]), commit):
            return
        for token in new:
            self.cache.tokens[sequence_id].append(token)
            if not self.run_to(sequence_id, len(self.cache.tokens[sequence_id]), commit):
                return

    @precondition(has_sequences)
    @rule(number=PICK, lag=st.integers(0, 3))
    def commit(self, number: int, lag: int) -> None:
        sequence_id = self.pick(number)
        self.commit_up_to(sequence_id, max(self.committed[sequence_id], self.cache.computed[sequence_id] - lag))

    @precondition(is_any_on_device)
    @rule(number=PICK, count=st.integers(1, 9))
    def reserve_without_running(self, number: int, count: int) -> None:
        sequence_id = self.pick_on_device(number)
        computed = self.cache.computed[sequence_id]
        moves = self.cache.blocks.reserve(sequence_id, computed + count)
        if moves is not None:
            self.cache.apply_copies(moves)
            self.cache.blocks.truncate(sequence_id, computed)

    @precondition(has_sequences)
    @rule(number=PICK)
    def fork(self, number: int) -> None:
        parent_id = self.pick(number)
        if len(self.committed) >= 6:
            return
        self.cache.fork(parent_id, self.next_id)
        self.committed[self.next_id] = self.committed[parent_id]
        self.next_id += 1

    @precondition(has_sequences)
    @rule(number=PICK, drop=st.integers(1, 9), tail=st.lists(st.integers(0, 1), min_size=1, max_size=3))
    def truncate(self, number: int, drop: int, tail: list[int]) -> None:
        sequence_id = self.pick(number)
        stop = max(0, self.cache.computed[sequence_id] - drop)
        before = self.state()
        try:
            self.cache.truncate(sequence_id, stop)
        except ValueError:
            assert any(layout.sliding_window for layout in self.cache.groups)
            assert self.state() == before
            return
        self.cache.tokens[sequence_id][stop:] = tail
        self.committed[sequence_id] = min(self.committed[sequence_id], stop)

    @precondition(has_sequences)
    @rule(number=PICK)
    def free(self, number: int) -> None:
        sequence_id = self.pick(number)
        self.cache.free(sequence_id)
        del self.committed[sequence_id]

    @precondition(is_any_on_device)
    @rule(number=PICK)
    def swap_out(self, number: int) -> None:
        before = self.state()
        assert self.cache.swap_out(self.pick_on_device(number)) or self.state() == before

    @precondition(lambda self: bool(self.cache.swapped))
    @rule(number=PICK)
    def swap_in(self, number: int) -> None:
        before = self.state()
        sequence_id = sorted(self.cache.swapped)[number % len(self.cache.swapped)]
        assert self.cache.swap_in(sequence_id) or self.state() == before

    @invariant()
    def everything_is_right(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for sequence_id in list(self.committed):
            self.cache.free(sequence_id)
        self.cache.check()
        usage = self.cache.blocks.usage()
        assert usage.used == usage.tokens_stored == (0,) * len(self.cache.groups)
        assert self.cache.blocks.free_blocks() == usage.total

    def run_to(self, sequence_id: int, stop: int, commit: bool) -> bool:
        before = self.state()
        if self.cache.run(sequence_id, stop):
            if commit:
                self.commit_up_to(sequence_id, stop)
            return True
        assert self.state() == before
        assert self.is_short(sequence_id, stop)
        # The walk goes on with something to do.
        self.free(sequence_id)
        return False

    def commit_up_to(self, sequence_id: int, stop: int) -> None:
        self.cache.commit(sequence_id, stop)
        self.committed[sequence_id] = stop

    def state(self) -> tuple[Any, ...]:
        blocks, groups = self.cache.blocks, range(len(self.cache.groups))
        tables = [[blocks.block_table(sequence_id, group) for group in groups] for sequence_id in self.committed]
        return blocks.usage(), tables

    def is_short(self, sequence_id: int, stop: int) -> bool:
        """Recount, from block tables alone, whether some group lacks the blocks up to ``stop``."""
        on_device = self.committed.keys() - self.cache.swapped
        for group, layout in enumerate(self.cache.groups):
            table = self.cache.blocks.block_table(sequence_id, group)
            held = [b for s in on_device for b in self.cache.blocks.block_table(s, group)]
            computed = self.cache.computed[sequence_id]
            needed = -(-stop // layout.block_size) - len(table)
            needed += computed % layout.block_size > 0 and held.count(table[-1]) > 1
            dead = max(0, computed - (layout.sliding_window or computed + 1) + 1) // layout.block_size
            needed -= sum(block != -1 and held.count(block) == 1 for block in table[:dead])
            if needed > self.cache.blocks.free_blocks()[group]:
                return True
        return False


def drive(driver: Callable[..., Any], max_examples: int) -> None:
    run_state_machine_as_test(
        lambda: CacheMachine(driver),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=60,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900)  # a failure takes minutes to shrink
def test_any_order_of_operations_keeps_every_token(driver) -> None:
    drive(driver, 200)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_any_order_of_operations_keeps_every_token_at_full_count(driver) -> None:
    drive(driver, 2000)
