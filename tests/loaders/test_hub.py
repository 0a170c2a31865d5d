"""Fetching from a hub: what is asked for, with which token, and what its refusals become.

The hub is a local server that answers as the real one does, as far as the client asks.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

_COMMIT = "0123456789abcdef" * 2 + "01234567"
_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights",
    "consolidated.safetensors": b"the same weights",
    "pytorch_model.bin": b"a pickle",
    "modeling_custom.py": b"code",
    "onnx/config.json": b"{}",
}
_RESOLVE = """
import sys
from pageport.errors import ModelNotFound
from pageport.models.resolve import resolve_model
try:
    print(resolve_model("someone/model", sys.argv[1] or None, allow_pickle=bool(sys.argv[2])))
except ModelNotFound as error:
    print(error)
"""


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.partition("?")[0]
        if "someone/model" not in path:  # the client also asks for things of its own
            self._answer(404, b"{}")
            return
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.server.refusal is not None:
            status, code = self.server.refusal
            self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "refused"})
        elif path == "/api/models/someone/model/revision/main":
            self._answer(200, json.dumps({"id": "someone/model", "sha": _COMMIT, "siblings": []}).encode())
        elif path == f"/api/models/someone/model/tree/{_COMMIT}":
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": name}
                for name, data in self.server.files.items()
            ]
            self._answer(200, json.dumps(files).encode())
        else:
            name = path.removeprefix(f"/someone/model/resolve/{_COMMIT}/")
            self._answer(200, self.server.files[name], {"ETag": f'"{name}"', "X-Repo-Commit": _COMMIT})

    def do_HEAD(self):
        self.do_GET()

    def _answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        """Keep the test's output clean."""


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.files, server.refusal, server.tokens = dict(_FILES), None, set()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def resolve(hub, tmp_path):
    def run(revision="", allow_pickle="", **environment):
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), **environment}
        command = [sys.executable, "-c", _RESOLVE, revision, allow_pickle]
        return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.strip()

    return run


def _names(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_weights_config_and_tokenizer_are_fetched_and_nothing_else(resolve, hub, tmp_path):
    """SEC-09: no pickle, no code."""
    snapshot = tmp_path / "hf" / "hub" / "models--someone--model" / "snapshots" / _COMMIT
    assert resolve(HF_TOKEN="hf_secret") == str(snapshot)
    assert _names(snapshot) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert hub.tokens == {"Bearer hf_secret"}


@pytest.mark.parametrize(("allow_pickle", "has_pickle"), [("", False), ("yes", True)])
def test_a_pickle_is_fetched_only_when_allowed_and_alone(allow_pickle, has_pickle, resolve, hub, tmp_path):
    """SEC-09"""
    del hub.files["model.safetensors"]
    resolve(allow_pickle=allow_pickle)
    snapshot = tmp_path / "hf" / "hub" / "models--someone--model" / "snapshots" / _COMMIT
    assert ("pytorch_model.bin" in _names(snapshot)) is has_pickle


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((404, "RepoNotFound"), "it is unknown. Check the spelling; for a private model set HF_TOKEN."),
        ((404, "RevisionNotFound"), "it has no revision 'v9'. Check --revision."),
        ((403, "GatedRepo"), "/someone/model and set HF_TOKEN."),
    ],
)
def test_a_refusal_is_explained(refusal, message, resolve, hub):
    hub.refusal = refusal
    answer = resolve(revision="v9")
    assert answer.startswith("someone/model is no local folder or .gguf file and no packaged model")
    assert answer.endswith(message)
