"""Which engines are compared, on which model, and how each workload is put to them."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BENCH = Path(__file__).parent
PEERS = Path(os.environ.get("PAGEPORT_PEERS", "~/.cache/pageport-bench/peers")).expanduser()
GGUF = Path(os.environ.get("GGUF", "~/.cache/pageport/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")).expanduser()

OURS = "pageport"
LOADS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8000)
# What --which may name beside single workloads.
FAMILIES = {"load": [f"load-{n}" for n in LOADS], "context": [f"context-{n}" for n in CONTEXTS]}


@dataclass(frozen=True)
class Job:
    """One process: a runner, started with some workloads in one mode."""

    mode: str
    workloads: Sequence[str]


@dataclass(frozen=True)
class Engine:
    """One engine in one setting: a row of the table.

    ``offline`` and ``http`` are the families of workloads (``W1``, ``load``, …) that it runs in that mode.
    """

    name: str
    peer: str  # the folder of its environment
    script: str
    model: Path
    options: Sequence[str] = ()
    offline: Sequence[str] = ()
    http: Sequence[str] = ()
    has_cold_start: bool = True
    # Requests of a workload to which it is held, where the rate does not depend on their number.
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        # llama.cpp's runner uses the standard library only.
        if self.peer in (OURS, "llama.cpp", "xllamacpp"):
            return Path(sys.executable)
        return PEERS / self.peer / "venv" / "bin" / "python"

    @property
    def missing(self) -> str | None:
        """What it lacks, as the command that brings it; None when it can run."""
        if self.peer != OURS and not (PEERS / self.peer / "versions.txt").exists():
            return f"bench/peers.sh {self.peer}"
        if not self.model.exists():
            return "pageport models get smollm2" if self.model == GGUF else "bench/peers.sh models"
        return None

    def jobs(self, workloads: Sequence[str]) -> list[Job]:
        """Split the workloads that this engine runs into processes."""
        offline = [name for name in workloads if family_of(name) in self.offline and name not in self.limits]
        limited = [name for name in workloads if family_of(name) in self.offline and name in self.limits]
        http = [name for name in workloads if family_of(name) in self.http]
        jobs = [Job("offline", offline), *(Job("offline", [name]) for name in limited), Job("http", http)]
        if self.has_cold_start and "cold" in workloads:
            jobs.append(Job("cold", ["cold"]))
        return [job for job in jobs if job.workloads]

    def command(self, job: Job, run: int, extra: Sequence[str] = ()) -> list[str]:
        """Return the command line of one process; it measures once."""
        command = [str(self.python), str(BENCH / self.script), str(self.model), "--mode", job.mode]
        command += ["--engine", self.name, "--first-run", str(run), *self.options]
        if job.mode != "cold":
            command += ["--which", ",".join(job.workloads)]
        limits = [self.limits[name] for name in job.workloads if name in self.limits]
        return [*command, *(["--limit", str(limits[0])] if limits else []), *extra]


def family_of(workload: str) -> str:
    return workload.partition("-")[0]


def expand(names: Sequence[str]) -> list[str]:
    """Replace ``load`` and ``context`` by their workloads."""
    return [workload for name in names for workload in FAMILIES.get(name, [name])]


def find_engines(names: Sequence[str] | None) -> list[Engine]:
    """Return the engines of these names or peers, in the table's order; all without names.

    Raises:
        ValueError: a name fits none.
    """
    if names is None:
        return list(ENGINES)
    for name in names:
        if not any(name in (engine.name, engine.peer) for engine in ENGINES):
            raise ValueError(f"There is no engine {name}. There are {', '.join(engine.name for engine in ENGINES)}.")
    return [engine for engine in ENGINES if engine.name in names or engine.peer in names]


def _pageport(name: str, model: Path, *options: str) -> Engine:
    offline = ("W1", "W2", "W3", "context")
    return Engine(f"{OURS}-{name}", OURS, "run_pageport.py", model, options, offline, ("W4", "load"))


def _llama_cpp(type_name: str, model: Path) -> list[Engine]:
    server = ("W1", "W2", "W3", "W4", "load")
    wheel = ("--wheel-python", str(PEERS / "xllamacpp" / "venv" / "bin" / "python"))
    script, tool = "run_llama_cpp.py", ("W1", "context")
    return [
        Engine(f"llama.cpp-{type_name}-tool", "llama.cpp", script, model, offline=tool, has_cold_start=False),
        Engine(f"llama.cpp-{type_name}", "llama.cpp", script, model, http=server),
        Engine(f"xllamacpp-{type_name}", "xllamacpp", script, model, wheel, http=server),
    ]


def _vllm(name: str, *options: str) -> Engine:
    offline = ("W1", "W2", "W3", "context")
    return Engine(f"vllm-{name}", "vllm", "run_vllm.py", MODELS / "hf-float32", options, offline, ("W4", "load"))


def _openvino(name: str, model: Path, *options: str) -> Engine:
    offline = ("W1", "W2", "W3", "context")
    return Engine(f"openvino-{name}", "openvino", "run_openvino.py", model, options, offline)


def _transformers(name: str, *options: str, offline: Sequence[str], limits: Mapping[str, int] | None = None) -> Engine:
    model = MODELS / "hf-float32"
    return Engine(
        f"transformers-{name}", "transformers", "run_transformers.py", model, options, offline, limits=limits or {}
    )


MODELS = PEERS / "models"

ENGINES: Sequence[Engine] = (
    _pageport("q4_1", GGUF),
    _pageport("q8_0", MODELS / "Q8_0.gguf"),
    _pageport("int8", MODELS / "hf-float32", "--setting", "quantization=int8"),
    _pageport("int8-kv8", MODELS / "hf-float32", "--setting", "quantization=int8", "--setting", "kv_cache_dtype=int8"),
    _pageport("float32", GGUF, "--setting", "dtype=float32"),
    _pageport("float32-kv16", GGUF, "--setting", "dtype=float32", "--setting", "kv_cache_dtype=bfloat16"),
    _pageport("float32-kv8", GGUF, "--setting", "dtype=float32", "--setting", "kv_cache_dtype=int8"),
    *_llama_cpp("q4_1", GGUF),
    *_llama_cpp("q8_0", MODELS / "Q8_0.gguf"),
    *_llama_cpp("f16", MODELS / "F16.gguf"),
    _vllm("float32"),
    _vllm("float32-eager", "--eager"),
    _vllm("bfloat16", "--dtype", "bfloat16"),
    _openvino("float32", MODELS / "openvino-fp32"),
    _openvino("bfloat16", MODELS / "openvino-fp32", "--precision", "bf16"),
    _openvino("int8", MODELS / "openvino-int8"),
    _openvino("int8-bfloat16", MODELS / "openvino-int8", "--precision", "bf16"),
    _openvino("q4_1", GGUF),
    _transformers("one-by-one", offline=("W1", "W2", "context"), limits={"W2": 8}),
    _transformers("static", "--method", "static", offline=("W2", "W3")),
)
