"""``serving``: an engine's server as a child process, from its start until the block ends."""

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meter import all_descendants

STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.02


class ServerFailed(Exception):
    """The server ended, or was not ready in time."""


@dataclass(frozen=True)
class RunningServer:
    """A server that answered its probe."""

    url: str
    pid: int
    started_at: float  # time.perf_counter() just before the process was made


@contextmanager
def serving(
    command: Sequence[str],
    port: int,
    *,
    probe: str = "/health",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> Iterator[RunningServer]:
    """Start ``command``, wait until GET ``probe`` answers 200, and stop the server when the block ends.

    Raises:
        ServerFailed: it ended before that, or took longer than ``timeout_s``; with the end of what it printed.
    """
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+b") as log:
        started_at = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        try:
            while not _answers(url + probe):
                waited_s = time.perf_counter() - started_at
                if process.poll() is not None or waited_s > timeout_s:
                    log.seek(0)
                    output = log.read().decode(errors="replace")[-1500:]
                    state = f"ended with {process.returncode}" if process.poll() is not None else "is not ready"
                    raise ServerFailed(f"{Path(command[0]).name} {state} after {waited_s:.0f} s: {output}")
                time.sleep(POLL_INTERVAL_S)
            yield RunningServer(url, process.pid, started_at)
        finally:
            _stop(process)


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask the server to end; whatever of it is left after a while is killed."""
    family = all_descendants(process.pid)
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in family - {process.pid}:
        # A child that outlived its server is now init's; one that is gone needs nothing.
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGKILL)
