"""From ``--model`` to files, without a network: what is not here is explained in a sentence."""

import os
import subprocess
import sys

import pytest

from pageport.errors import ModelNotFound
from pageport.models.resolve import resolve_model


def test_a_local_folder_or_file_is_itself(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"


def test_the_home_folder_may_be_abbreviated(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "nothing.gguf", "~/nothing", "a/b/c"])
def test_a_path_that_does_not_exist_is_not_looked_for_on_the_hub(name):
    with pytest.raises(ModelNotFound, match=f"no model folder or .gguf file {name}"):
        resolve_model(name)


def _resolve_elsewhere(name, **environment):
    """Resolve in a new process, since the hub's client reads its settings once; return the message."""
    code = (
        "from pageport.errors import ModelNotFound\n"
        "from pageport.models.resolve import resolve_model\n"
        f"try: print('found', resolve_model({name!r}))\n"
        "except ModelNotFound as error: print(error)\n"
    )
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment).stdout


def test_offline_the_message_says_what_is_missing_and_where(tmp_path):
    message = _resolve_elsewhere("someone/model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert message == (
        "someone/model is no local folder or .gguf file and no packaged model (smollm2, gemma3-270m), and as a hub id "
        f"it is not in the cache {tmp_path}/hub, while HF_HUB_OFFLINE forbids downloads. "
        "Unset HF_HUB_OFFLINE, or copy the model here and give its folder.\n"
    )


def test_an_unreachable_hub_is_named(tmp_path):
    message = _resolve_elsewhere("someone/model", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    assert "it could not be fetched from http://127.0.0.1:9 and is not in the cache" in message
    assert message.endswith("Check the network, or copy the model here and give its folder.\n")


def test_offline_a_cached_model_is_found(tmp_path):
    repository = tmp_path / "hub" / "models--someone--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert _resolve_elsewhere("someone/model", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) == f"found {snapshot}\n"


@pytest.mark.parametrize("name", ["a b c", "a--b", "-x"])
def test_a_malformed_id_is_refused_without_asking(name):
    with pytest.raises(ModelNotFound, match="as a hub id it is malformed"):
        resolve_model(name)
