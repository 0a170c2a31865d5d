"""The score card: what a person reads, what a pipe gets, and how a failure is repeated."""

import io
import json
import shlex
import subprocess
import sys

from rich.console import Console

from pageport.testing.conformance.card import ScoreCard
from pageport.testing.conformance.check import Level, Outcome, Status

OUTCOMES = [
    Outcome(level=Level.DISCOVERY, name="discovery/name", status=Status.PASSED, seconds=0.25),
    Outcome(level=Level.DISCOVERY, name="discovery/probe", status=Status.PASSED, seconds=0.5),
    Outcome(
        level=Level.MEMORY,
        name="memory/freed pools",
        status=Status.FAILED,
        seconds=1.0,
        message="after 20 pools [of 7 bytes] 9 bytes have not come back: does free_kv leak?",
    ),
    Outcome(
        level=Level.OPS,
        name="ops/rope",
        status=Status.DEVIATES,
        seconds=2.0,
        message="never: it has no sine",
    ),
    Outcome(level=Level.PERFORMANCE, name="performance/copy", status=Status.PASSED, seconds=3, measured="12.5 GB/s"),
]


def card(*outcomes: Outcome, **changes: object) -> ScoreCard:
    return ScoreCard(**({"name": "abacus", "seed": 17, "outcomes": list(outcomes)} | changes))


def printed(score_card: ScoreCard) -> str:
    """Return what a pipe gets: no colours, and 80 columns."""
    stream = io.StringIO()
    score_card.print(Console(file=stream, width=80))
    return stream.getvalue()


def test_a_level_is_one_line_with_its_counts():
    lines = [line.split() for line in printed(card(*OUTCOMES)).splitlines()]
    assert lines[:5] == [
        ["level", "passed", "deviations", "failed", "seconds"],
        ["0", "discovery", "2/2", "-", "-", "0.8"],
        ["1", "memory", "0/1", "-", "1", "1.0"],
        ["4", "ops", "0/1", "1", "-", "2.0"],
        ["8", "performance", "1/1", "-", "-", "3.0"],
    ]


def test_a_failure_shows_its_cause_and_one_unbroken_line_that_repeats_it():
    lines = printed(card(*OUTCOMES)).splitlines()
    at = lines.index("failed: memory/freed pools")
    assert lines[at + 1 : at + 3] == [
        "  after 20 pools [of 7 bytes] 9 bytes have not come back: does free_kv leak?",
        "  pageport conformance abacus --check 'memory/freed pools' --seed 17",
    ]


def test_deviations_carry_kind_and_reason_and_figures_are_shown():
    text = printed(card(*OUTCOMES))
    assert "declared deviations\n  ops/rope: never: it has no sine\n" in text
    assert "measured\n  performance/copy: 12.5 GB/s\n" in text


def test_a_pipe_gets_no_control_characters():
    assert "\x1b" not in printed(card(*OUTCOMES))


def test_the_reproduction_names_device_and_options():
    command = card(*OUTCOMES, ordinal=2, options={"path": "a b"}).reproduction("kv/write, float32")
    assert shlex.split(command) == [
        *["pageport", "conformance", "abacus", "--device", "2", "--backend-option", "path=a b"],
        *["--check", "kv/write, float32", "--seed", "17"],
    ]


def test_the_verdict_counts():
    assert card(*OUTCOMES).verdict == "abacus fails 1 of 5 checks."
    assert card(OUTCOMES[0], OUTCOMES[3]).verdict == "abacus passes 1 checks besides 1 declared deviations."
    assert card(OUTCOMES[0], OUTCOMES[3]).is_passed
    assert not card().is_passed


def test_json_holds_every_outcome_and_how_to_repeat_it():
    content = json.loads(json.dumps(card(*OUTCOMES).as_json()))
    assert (content["backend"], content["seed"], content["passed"]) == ("abacus", 17, False)
    assert content["levels"][1] == {
        "level": 1,
        "title": "memory",
        "total": 1,
        "passed": 0,
        "deviations": 0,
        "failed": 1,
        "seconds": 1.0,
    }
    failed = content["checks"][2]
    assert (failed["status"], failed["reproduction"]) == (
        "failed",
        "pageport conformance abacus --check 'memory/freed pools' --seed 17",
    )


def pageport(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pageport", "conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_its_seed_and_writes_json(tmp_path):
    done = pageport("cpu", "--level", "0", "--check", "discovery/capabilities/", "--json", str(tmp_path / "card.json"))
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads((tmp_path / "card.json").read_text())
    assert done.stdout.startswith(f"conformance of cpu, device 0, seed {content['seed']}\n")
    assert {check["name"].rpartition("/")[0] for check in content["checks"]} == {"discovery/capabilities"}
    assert done.stdout.endswith("cpu passes 7 checks.\n")


def test_the_command_fails_when_no_check_has_the_name():
    done = pageport("cpu", "--level", "0", "--check", "discovery/nothing")
    assert done.returncode == 1
    assert "no check was run" in done.stdout


def test_impossible_arguments_are_one_sentence():
    for arguments, words in [
        (("cpu", "--level", "9"), "There is no level 9. Levels: 0 discovery, 1 memory"),
        (("cpu", "--backend-option", "threads"), "'threads' is no key=value pair"),
        (("no-such-backend",), "There is no backend 'no-such-backend'"),
    ]:
        done = pageport(*arguments)
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
