"""Which changes of the interface plugins survive, and what the fault says that a changed interface is told by."""

import re

import pytest

from pageport.backend.interface_change import judge, next_version, version_of
from pageport.backend.lock import find_fault

TEXT = """interface 1.2

from pageport.backend

Kind = Literal['full', 'sliding']

SCHEMES = ('f32', 'f16')

INTERFACE = (1, 2)

@dataclass(frozen=True, kw_only=True)
class Spec
    size: int
    kind: Literal['full', 'sliding'] = 'full'
    count: int = 1

@dataclass(frozen=True)
class Place
    row: int = 0
    column: int = 0

class Pair(NamedTuple)
    one: int
    other: int

def check(spec: Spec, *, strict: bool=False) -> None

from pageport.backend.device

class Device(ABC)
    name: ClassVar[str]
    @property
    @abstractmethod
    def spec(self) -> Spec
    def close(self) -> None
    def linear(self, x: Tensor, out: Tensor | None=None) -> Tensor
    @abstractmethod
    def open(self, ordinal: int) -> None
"""


def changed(*replacements: tuple[str, str]) -> str:
    text = TEXT
    for before, after in replacements:
        assert text.count(before) == 1
        text = text.replace(before, after)
    return text


SAME = [
    (("    size: int\n", ""), ("count: int = 1\n", "count: int = 1\n    size: int\n")),  # given by keyword
    (("INTERFACE = (1, 2)", "INTERFACE = (1, 3)"), ("interface 1.2", "interface 1.3")),
    (
        ("Kind = Literal['full', 'sliding']\n\n", ""),
        ("from pageport.backend.device", "Kind = Literal['full', 'sliding']\n\nfrom pageport.backend.device"),
    ),
]
MINOR = [
    ("    count: int = 1\n", "    count: int = 1\n    depth: int = 0\n", "Spec.depth is a new field, 0 by default."),
    ("    column: int = 0\n", "    column: int = 0\n    depth: int = 0\n", "Place.depth is a new field, 0 by default."),
    ("    other: int\n", "    other: int\n    third: int = 0\n", "Pair.third is a new field, 0 by default."),
    ("    def close", "    def flush(self) -> None\n    def close", "Device.flush is a new method with a body."),
    ("@abstractmethod\n    def open", "def open", "Device.open has a body now."),
    ("    @abstractmethod\n    def open", "    def open", "Device.open has a body now."),
    ("class Pair", "class New\n    x: int\n\nclass Pair", "pageport.backend.New is new."),
    ("strict: bool=False", "strict: bool=False, loud: bool=True", "'loud', True by default"),
    ("kind: Literal['full', 'sliding']", "kind: Literal['full', 'latent', 'sliding']", "Spec.kind was"),
    ("Kind = Literal['full', 'sliding']", "Kind = Literal['full', 'sliding', 'latent']", "Kind was"),
    ("('f32', 'f16')", "('f32', 'f16', 'f8')", "SCHEMES was ('f32', 'f16') and has more now."),
    ("size: int", "size: int = 3", "Spec.size may be left out now: 3 by default."),
]
MAJOR = [
    ("    count: int = 1\n", "    count: int = 1\n    depth: int\n", "without a default, which nobody gives"),
    ("    count: int = 1\n", "", "Spec.count is gone."),
    ("count: int = 1", "number: int = 1", "Spec.count is gone."),
    ("count: int = 1", "count: int = 2", "Spec.count means another thing to who leaves it out: 2 instead of 1."),
    ("count: int = 1", "count: int", "Spec.count has no default any more; it was 1."),
    ("size: int", "size: float", "Spec.size was int and is float."),
    ("kind: Literal['full', 'sliding']", "kind: Literal['sliding']", "Spec.kind was"),
    ("    row: int = 0\n    column: int = 0\n", "    column: int = 0\n    row: int = 0\n", "in another order"),
    ("    row: int = 0\n", "    depth: int = 0\n    row: int = 0\n", "in another order"),
    ("    other: int\n", "    other: int\n    third: int\n", "without a default, which nobody gives"),
    ("    one: int\n", "    third: int = 0\n    one: int\n", "in another order"),
    ("@dataclass(frozen=True, kw_only=True)", "@dataclass(kw_only=True)", "Spec has other decorators"),
    ("class Pair(NamedTuple)", "class Pair(tuple)", "Pair has other bases: tuple."),
    (
        "class Pair(NamedTuple)\n    one: int\n    other: int\n",
        "Pair = tuple\n",
        "Pair is a definition of another kind.",
    ),
    ("    name: ClassVar[str]\n", "    name: ClassVar[str]\n    rank: ClassVar[int]\n", "Device.rank is a new field"),
    (
        "    def close",
        "    @abstractmethod\n    def flush(self) -> None\n    def close",
        "flush is a new abstract method",
    ),
    ("    def close(self) -> None\n", "", "Device.close is gone."),
    ("    def close", "    @abstractmethod\n    def close", "Device.close became abstract"),
    ("    def close", "    @classmethod\n    def close", "Device.close has other decorators"),
    ("x: Tensor", "rows: Tensor", "Device.linear has lost its parameter 'x'"),
    ("x: Tensor, out: Tensor | None=None", "out: Tensor | None=None", "Device.linear has lost its parameter 'x'"),
    (
        "out: Tensor | None=None",
        "out: Tensor | None=None, cap: float=0",
        "a new parameter 'cap', which overrides do not",
    ),
    ("out: Tensor | None=None", "out: Tensor", "Device.linear's parameter 'out' was Tensor | None and is Tensor."),
    ("ordinal: int", "ordinal: int=0", "Device.open's parameter 'ordinal' may be left out now"),
    ("def open(self, ordinal: int) -> None", "def open(self, ordinal: int) -> int", "Device.open's result was None"),
    ("def open(self, ordinal: int", "def open(self, ordinal: int, **options: str", "takes another * or ** parameter"),
    ("strict: bool=False", "careful: bool=False", "check has lost its parameter 'strict'"),
    ("spec: Spec, *, strict", "spec: Spec, other: Spec, *, strict", "'other' without a default"),
    ("('f32', 'f16')", "('f32',)", "SCHEMES was ('f32', 'f16') and is ('f32',)."),
    ("Kind = Literal['full', 'sliding']", "Kind = str", "Kind was Literal['full', 'sliding'] and is str."),
    ("from pageport.backend.device", "from pageport.backend.machine", "Device moved to pageport.backend.machine."),
]


@pytest.mark.parametrize("replacements", SAME)
def test_what_nobody_can_notice_is_no_change(replacements):
    assert judge(TEXT, changed(*replacements)) == ("same", ())


@pytest.mark.parametrize(("before", "after", "what"), MINOR)
def test_what_old_plugins_need_not_know_is_minor(before, after, what):
    verdict = judge(TEXT, changed((before, after)))
    assert verdict.kind == "minor"
    assert what in verdict.changes[0].what


@pytest.mark.parametrize(("before", "after", "what"), MAJOR)
def test_what_old_plugins_break_on_is_major(before, after, what):
    verdict = judge(TEXT, changed((before, after)))
    assert verdict.kind == "major"
    assert what in " ".join(change.what for change in verdict.changes if change.kind == "major")


def test_the_gravest_of_several_changes_counts():
    verdict = judge(TEXT, changed(("count: int = 1", "number: int = 1")))
    assert [change.kind for change in verdict.changes] == ["major", "minor"]


@pytest.mark.parametrize(
    ("version", "kind", "needed"),
    [
        ((1, 2), "same", (1, 2)),
        ((1, 2), "minor", (1, 3)),
        ((1, 2), "major", (2, 0)),
        ((0, 3), "major", (0, 3)),
    ],
)
def test_a_change_asks_for_a_version(version, kind, needed):
    assert next_version(version, kind) == needed


def test_a_text_without_a_version_is_refused():
    with pytest.raises(ValueError, match="starts with its version"):
        version_of("class Device")


def test_a_frozen_interface_is_without_fault():
    assert find_fault(TEXT, TEXT, {(1, 2): TEXT}) is None


@pytest.mark.parametrize(
    ("before", "after", "version", "shown"),
    [
        ("count: int = 1\n", "count: int = 1\n    depth: int = 0\n", "(1, 3)", "+    depth: int = 0"),
        ("count: int = 1\n", "number: int = 1\n", "(2, 0)", "-    count: int = 1"),
    ],
)
def test_an_interface_that_left_its_version_says_which_it_is_now_and_what_to_do(before, after, version, shown):
    now = changed((before, after))
    # Writing the lock file again is not enough.
    fault = find_fault(now, now, {(1, 1): TEXT.replace("interface 1.2", "interface 1.1"), (1, 2): TEXT})
    assert fault is not None
    assert "says that it is 1.2, but is not what 1.2 was frozen as" in fault
    assert shown in fault.splitlines()
    steps = [f"write INTERFACE = {version}", "pageport.backend.lock --write", "CHANGELOG", "time_capsules/build.py"]
    assert all(step in fault for step in steps)
    assert ("keep plugins of 1.x working" in fault) is (version == "(2, 0)")


def test_an_interface_that_was_raised_enough_needs_its_lock_file_and_then_a_capsule():
    now = changed(("interface 1.2", "interface 1.3"), ("count: int = 1\n", "count: int = 1\n    depth: int = 0\n"))
    frozen = {(1, 2): TEXT}
    stale = find_fault(now, TEXT, frozen)
    assert stale is not None
    assert "differs by a minor change" in stale
    assert "minor: Spec.depth is a new field, 0 by default." in stale
    missing = find_fault(now, now, frozen)
    assert missing == "Interface 1.3 has no time capsule yet. Run: python tests/time_capsules/build.py"
    assert find_fault(now, now, {**frozen, (1, 3): now}) is None


def test_before_1_0_the_lock_file_is_all():
    now = re.sub("interface 1.2", "interface 0.2", TEXT)
    assert find_fault(now, now, {}) is None
    fault = find_fault(now.replace("count", "number"), now, {})
    assert fault is not None
    assert "differs by a major change" in fault
