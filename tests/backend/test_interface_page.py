"""docs/interface.md names everything the interface has, and its device behind a compiler works."""

import re
import subprocess
import sys
import types
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from pageport.backend import (
    AttentionDescription,
    Capabilities,
    DecoderDescription,
    LayerDescription,
    MLPDescription,
    lock,
)
from pageport.backend.decoder_weights import DecoderWeights, LayerWeights
from pageport.backend.device import Device
from pageport.backend.op_table import OPTIONAL_OPS
from pageport.backend.program import Bucket, ProgramStep
from pageport.testing.conformance.tiny_engine import Answers, TinyEngine, TinyModel, request
from pageport.testing.reference_device import ReferenceDevice

PAGE = (Path(__file__).parents[2] / "docs" / "interface.md").read_text()
PROMPTS = [[3, 5, 8], list(range(70)), [7] * 33]


def section(title: str) -> str:
    (found,) = re.findall(rf"^#+ {title}\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return found


def device_code() -> str:
    (code,) = re.findall(r"^`compiled_device.py`\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < 50
    return code


@pytest.fixture(scope="module")
def device_class() -> type[Device]:
    """Run the page's device as a module of its own."""
    module = types.ModuleType("compiled_device")
    exec(compile(device_code(), "compiled_device.py", "exec"), vars(module))
    return module.CompiledDevice


def answers_of(device: Device) -> Answers:
    with TinyEngine(device, TinyModel(), block_size=16) as engine:
        return engine.run(*(request(str(len(prompt)), prompt, max_tokens=12) for prompt in PROMPTS))


def tokens_of(answers: Answers) -> list[list[int]]:
    return [answer.tokens for answer in answers.values()]


def test_the_page_names_what_the_lock_file_does():
    named: dict[str, set[str]] = {}
    module = "pageport.backend"
    for line in section("Names").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            module = cells[0].split("`")[1]
        name = re.fullmatch(r"`(\w+)`", cells[-2]) if len(cells) > 1 else None
        if name is not None:
            assert name[1] not in named.setdefault(module, set())
            named[module].add(name[1])
    assert named == {module: set(names) for module, names in lock.public_names().items()}


@pytest.mark.parametrize(
    ("title", "kinds"),
    [
        ("How a step is filled up", [ProgramStep]),
        ("The description", [DecoderDescription, LayerDescription, AttentionDescription, MLPDescription]),
        ("The weights", [DecoderWeights, LayerWeights]),
    ],
)
def test_the_page_names_every_field_of_what_a_program_is_given(title, kinds):
    names = {field.name for kind in kinds for field in fields(kind)} - {"bucket", "choice", "layers"}
    text = section(title)
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_page_names_the_capabilities_with_buckets_and_the_ops_in_a_graph():
    named = [
        field.name for field in fields(Capabilities) if f"`{field.name}`" in section("Devices that run whole models")
    ]
    assert {name for name in vars(Capabilities()) if name.endswith("_buckets")} <= set(named)
    source = (Path(lock.PACKAGE) / "backend" / "reference" / "static_decoder.py").read_text()
    called = set(re.findall(r"device\.(\w+)\(", source)) & {*OPTIONAL_OPS, "embed", "linear", "write_kv"}
    assert [op for op in sorted(called) if f"`{op}`" not in section("A device behind `torch.compile`")] == []


def test_the_pages_device_compiles_every_bucket_before_the_first_request(device_class, monkeypatch):
    codes, settings, runs = [], [], []

    def compile_like_torch(graph, **given):
        codes.append(graph.__code__)
        settings.append(given)

        def compiled(inputs):
            runs.append((len(inputs.seq_lens), len(inputs.token_ids)))
            return graph(inputs)

        return compiled

    monkeypatch.setattr(torch, "compile", compile_like_torch)
    with TinyEngine(device_class(), TinyModel(), block_size=16) as engine:
        assert runs == [(8, 8), (1, 64)]
        assert len(codes) == len({id(code) for code in codes}) == 2
        assert settings == [{"backend": "eager", "fullgraph": True, "dynamic": False}] * 2
        answers = engine.run(*(request(str(len(prompt)), prompt, max_tokens=12) for prompt in PROMPTS))
    assert len(codes) == 2
    assert tokens_of(answers) == tokens_of(answers_of(ReferenceDevice()))


# What compiles under the real `torch.compile` runs in a process where signatures are not checked: it would trace that.
JUDGE = """
import sys
from dataclasses import replace

import compiled_device
import torch
from torch._dynamo.utils import counters

from pageport.backend import Backend, Probe
from pageport.testing.conformance import Context, Level, run_suite
from pageport.testing.conformance.check import Status


class Device(compiled_device.CompiledDevice):
    @property
    def capabilities(self):
        return replace(super().capabilities, **SIZES)


class Compiled(Backend):
    name = "compiled"
    interface = Backend.interface

    @classmethod
    def probe(cls):
        return Probe(count=1)

    def open(self, ordinal, options, rank=None):
        return Device()


context = Context(Compiled, seed=5)
outcomes = [outcome for check in sys.argv[1:] for outcome in run_suite(context, [Level.ENGINE], only=f"engine/{check}")]
wrong = [outcome for outcome in outcomes if outcome.status is not Status.PASSED]
print(len(outcomes), "checks,", counters["stats"]["unique_graphs"], "graphs", torch._dynamo.config.recompile_limit)
sys.exit(str(wrong) if wrong else 0)
"""


@pytest.fixture
def judge(tmp_path: Path):
    def run(sizes: str, *checks: str) -> list[int]:
        """Return how many checks passed, how many graphs there were, and how many torch makes of one code."""
        (tmp_path / "compiled_device.py").write_text(device_code())
        command = [sys.executable, "-c", JUDGE.replace("**SIZES", sizes), *checks]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [int(number) for number in re.findall(r"\d+", done.stdout)]

    return run


@pytest.mark.full
def test_the_pages_device_makes_one_graph_a_bucket_of_more_buckets_than_torch_takes_of_one_code(judge):
    sizes = "token_buckets=(16, 32, 64), request_buckets=(1, 2, 4, 8), context_buckets=(128, 256)"
    checks, graphs, limit = judge(sizes, "llama/together")
    assert (checks, graphs) == (1, 14)
    assert graphs > limit


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_pages_device_passes_engine_checks(judge):
    names = ["llama/together", "llama/preempted, recomputed", "llama/fork n=4", "gpt2/prefix hit", "program/llama"]
    checks, graphs, _ = judge("", *names)
    assert checks >= len(names)
    assert graphs >= 2 * len(names)


def test_a_bucket_is_the_tuple_that_the_page_says():
    assert "`(requests, tokens, context)`" in section("Devices that run whole models")
    assert Bucket._fields == ("requests", "tokens", "context")
