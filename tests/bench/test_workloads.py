"""The workloads are the same for ever: figures of different days are of the same work."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import workloads

# Of the JSON text that the first runs of every engine were measured on.
SHA256 = "1edc9850a31658fd6584d7b704ec66b8dbcb92bac7874df354f18904ac734e42"


def test_the_default_file_is_the_one_that_every_figure_was_measured_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["workloads.py", str(tmp_path / "w.json")])
    workloads.main()
    assert hashlib.sha256((tmp_path / "w.json").read_bytes()).hexdigest() == SHA256
    assert "W2: 64 requests, 17176 prompt tokens, 8874 output tokens, the longest 719" in capsys.readouterr().out


@pytest.mark.parametrize("changed", [{"seed": 1}, {"vocab_size": 1000}, {"first_id": 0}])
def test_another_seed_or_vocabulary_is_other_work(changed: dict[str, int]) -> None:
    text = json.dumps(workloads.make_workloads(**changed))
    assert hashlib.sha256(text.encode()).hexdigest() != SHA256


def test_shifting_changes_every_token_and_keeps_what_requests_share() -> None:
    requests = workloads.make_workloads()["W3"]
    shifted = workloads.shift(requests, 3)
    assert all(a != b for a, b in zip(requests[0]["prompt"], shifted[0]["prompt"], strict=True))
    assert all(request["prompt"][:512] == shifted[0]["prompt"][:512] for request in shifted)
    assert len({tuple(request["prompt"][512:]) for request in shifted}) == len(requests)
    assert all(20 <= token < 49020 for request in shifted for token in request["prompt"])


@pytest.mark.parametrize(("name", "count", "length"), [("load-4", 12, 128), ("context-512", 1, 512)])
def test_families_are_named_by_their_size(name: str, count: int, length: int) -> None:
    requests = workloads.read_workload(None, name)
    assert [len(request["prompt"]) for request in requests] == [length] * count


def test_an_unknown_workload_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match=r"no workload W9.*W1, W2, W3, W4, load-N"):
        workloads.read_workload(None, "W9")


def test_shortening_keeps_the_prompts() -> None:
    requests = workloads.make_workloads()["W2"]
    short = workloads.shorten(requests, 3, 20)
    assert [r["prompt"] for r in short] == [r["prompt"] for r in requests[:3]]
    assert [r["max_tokens"] for r in short] == [min(20, r["max_tokens"]) for r in requests[:3]]
