"""docs/writing-a-backend.md followed to the letter, in an empty folder and a fresh environment.

Torch and what else pageport depends on is lent by the environment the tests run in. Pip fetches what builds a plugin.
"""

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from .conftest import ROOT, Files

PROMPT = "The capital of France is"
# How long a server may take to load the demo model, in seconds, on a machine with other work.
START_LIMIT_S = 120


class Engineer:
    """Types commands where the page's files are written to."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PAGEPORT"))},
            "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
            "COLUMNS": "200",
        }

    def write(self, files: Files) -> None:
        for name, content in files.items():
            path = self.folder / "pageport-example" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def run(self, commands: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", commands], cwd=self.folder, env=self._environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, command: str) -> "subprocess.Popen[str]":
        log = (self.folder / "log").open("w")
        return subprocess.Popen(
            ["sh", "-c", f"exec {command}"], cwd=self.folder, env=self._environ, stdout=log, stderr=log, text=True
        )


def complete(port: int, server: "subprocess.Popen[str]") -> str:
    """Ask a server that is starting."""
    body = {"model": "smollm2", "prompt": PROMPT, "temperature": 0, "max_tokens": 16}
    address = f"http://127.0.0.1:{port}/v1/completions"
    asked = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    give_up = time.monotonic() + START_LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=START_LIMIT_S) as answer:
                return str(json.load(answer)["choices"][0]["text"])
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > give_up:
                raise
            time.sleep(0.2)


@pytest.fixture
def engineer(tmp_path: Path) -> Engineer:
    """Return one whose environment has pageport installed, and everything that it needs."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [str(environment / "bin" / "pip"), "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    (tmp_path / "empty").mkdir()
    return Engineer(tmp_path / "empty", environment)


@pytest.mark.full
@pytest.mark.smollm2
@pytest.mark.timeout(900)
def test_the_page_ends_with_a_plugin_that_is_listed_and_serves(
    engineer: Engineer, sections: list[str], steps: list[Files]
) -> None:
    install, serve = re.findall(r"^```sh\n(.*?)^```", sections[0], re.MULTILINE | re.DOTALL)
    engineer.write(steps[0])
    shown = engineer.run(install)
    assert re.search(r"^example +yes +1 +pageport-example 0\.1\.0", shown, re.MULTILINE)
    assert re.search(r"^example passes \d+ checks\.$", shown, re.MULTILINE)
    for files in steps[1:]:
        engineer.write(files)
    assert "pageport_example.attention" in engineer.run("pageport backends explain example")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = engineer.start(f"{serve.strip()} --port {port}")
    try:
        served = complete(port, server)
    finally:
        server.terminate()
        server.wait()
    asked = f"pageport generate --backend cpu --dtype float32 --temperature 0 --max-tokens 16 --json '{PROMPT}'"
    assert served == json.loads(engineer.run(asked))["text"] != ""
