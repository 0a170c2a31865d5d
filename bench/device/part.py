"""``Part``: one part of the device run: where it runs, its results, written as they come, and its compile time."""

import argparse
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

MICROSECONDS = 1e-6


class Part:
    """A context manager; an exception becomes a result and ends the part."""

    def __init__(self, name: str) -> None:
        """Read the command line: ``--dry`` means small and on the CPU."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--dry", action="store_true")
        self.is_dry: bool = parser.parse_args().dry
        self.backend = "cpu" if self.is_dry else "cuda"
        self.torch_device = torch.device(self.backend)
        self.results: dict[str, Any] = {}
        self._file = Path(os.environ.get("OUT", "build/device")) / f"{name}.json"
        self._started = time.perf_counter()
        self._compile_s = 0.0
        self._num_compiled = 0
        self._listen()

    def __enter__(self) -> "Part":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.add("failed", f"{type(error).__name__}: {error}")

    def add(self, name: str, value: Any) -> None:
        """Keep a result, print it and write all so far."""
        self.results[name] = value
        print(name, json.dumps(value), flush=True)
        compiled = {"kernels compiled": self._num_compiled, "compile s": round(self._compile_s, 1)}
        took = {"wall s": round(time.perf_counter() - self._started, 1), **compiled}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**self.results, "took": took}, indent=1) + "\n")

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize()

    def _listen(self) -> None:
        """Have triton tell how long each compilation takes; without triton nothing is compiled."""
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.compilation.listener = self._on_compiled

    def _on_compiled(self, *, times: Any, cache_hit: bool, **_rest: Any) -> None:
        if not cache_hit:
            self._num_compiled += 1
            self._compile_s += times.total * MICROSECONDS
