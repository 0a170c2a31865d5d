"""Models that cannot be run as they are: refused while they load, with what is wrong in one sentence."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from pageport import LLM, SamplingParams
from pageport.cli.app import app
from pageport.errors import ConfigurationError, CorruptWeights, RequestTooLong, UnsupportedFeature, UnsupportedModel
from pageport.models.registry import ARCHITECTURES
from pageport_cpu.device import CpuDevice

from .local_server import PATHS, LocalServer
from .variants import write_variant

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture
def copy_of_llama(tiny_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy the tiny LLaMA with some fields of its config changed."""

    def copy(**config: Any) -> Path:
        folder = Path(shutil.copytree(tiny_llama, tmp_path / "copy"))
        before = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**before, **config}))
        return folder

    return copy


@pytest.mark.parametrize("variant", ["gemma2", "gemma3", "mistral-window"])
def test_a_device_that_lacks_what_a_model_needs_is_refused(
    open_llm: OpenLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """ARC-01: a cap or a window that would be dropped; not silently run without it."""
    write_variant(variant, tmp_path / variant)
    plain = replace(CpuDevice().capabilities, attention_variants=())
    monkeypatch.setattr(CpuDevice, "capabilities", property(lambda _: plain))
    with pytest.raises(UnsupportedFeature, match=r"attention variant (softcap|sliding_window)"):
        open_llm(tmp_path / variant, backend_options=("kernels=none",))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_scaling": {"rope_type": "wormhole", "factor": 2.0}},
        {"rope_scaling": {"type": "wormhole", "factor": 2.0}},
        {"rope_scaling": {"type": "linear", "rope_type": "wormhole", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "wormhole", "rope_theta": 1e4}},
    ],
)
def test_an_unknown_rope_type_fails_at_load_by_its_name(
    open_llm: OpenLLM, copy_of_llama: Callable[..., Path], scaling: dict[str, Any]
) -> None:
    """ARC-04."""
    with pytest.raises(UnsupportedModel, match=r"'wormhole', .*Known: default, linear"):
        open_llm(copy_of_llama(**scaling))


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_rope_factor_without_a_type_is_not_taken_as_unscaled(
    open_llm: OpenLLM, copy_of_llama: Callable[..., Path], name: str
) -> None:
    """ARC-04."""
    with pytest.raises(UnsupportedModel, match=r"by 2\.0 and does not say how"):
        open_llm(copy_of_llama(**{name: {"factor": 2.0, "rope_theta": 1e4}}))


@pytest.mark.parametrize("name", ["tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"])
def test_parallel_sizes_are_refused_by_name(open_llm: OpenLLM, tiny_llama: Path, name: str) -> None:
    """ARC-06: no size is possible yet; neither offline nor on the command line is one ignored."""
    with pytest.raises(ConfigurationError, match=f"Unknown setting '{name}'"):
        open_llm(tiny_llama, **{name: 2})
    flag = "--" + name.replace("_", "-")
    result = CliRunner().invoke(app, ["serve", "--model", str(tiny_llama), flag, "2"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert flag in result.output


@pytest.mark.parametrize(
    "architecture",
    ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM", "PhimoeForCausalLM"],
)
def test_mixtures_of_experts_are_refused_with_what_is_supported(
    open_llm: OpenLLM, copy_of_llama: Callable[..., Path], architecture: str
) -> None:
    """ARC-08."""
    with pytest.raises(UnsupportedModel) as refused:
        open_llm(copy_of_llama(architectures=[architecture], num_local_experts=8, num_experts=8))
    assert architecture in str(refused.value)
    assert all(name in str(refused.value) for name in ARCHITECTURES)


def test_the_supported_architectures_hold_no_mixture_of_experts() -> None:
    """ARC-08: one that is added brings the comparison of its routing with it."""
    assert not [name for name in ARCHITECTURES if "moe" in name.lower() or name.startswith("Mixtral")]


@pytest.mark.parametrize("variant", ["qwen3", "qwen2", "llama-biased-tied-wide-heads", "gemma3", "gpt-neox-parallel"])
def test_one_tensor_too_few_or_too_many_fails_at_load_by_its_name(
    open_llm: OpenLLM, tmp_path: Path, variant: str
) -> None:
    """ARC-09: a norm, a bias, a matrix: nothing is replaced, and nothing is left over."""
    write_variant(variant, tmp_path / variant)
    file = tmp_path / variant / "model.safetensors"
    tensors = load_file(file)
    kinds = {name.rpartition("layers.1.")[2]: name for name in tensors if "layers.1." in name}
    for name in kinds.values():
        save_file({other: tensor for other, tensor in tensors.items() if other != name}, str(file))
        with pytest.raises(CorruptWeights, match=f"needs {name.replace('.', '[.]')} that"):
            open_llm(tmp_path / variant)
    save_file({**tensors, "model.layers.1.surprise.weight": torch.zeros(2)}, str(file))
    with pytest.raises(CorruptWeights, match=r"hold model\.layers\.1\.surprise\.weight that"):
        open_llm(tmp_path / variant)


def test_learned_positions_end_the_context(open_llm: OpenLLM, tmp_path: Path) -> None:
    """ARC-11: filled to the last position, from a cached prefix too; one more is refused, not clamped."""
    reference = write_variant("gpt2-square", tmp_path / "gpt2")
    with pytest.raises(ConfigurationError, match=r"max-model-len is 161; this model takes 1 … 160"):
        open_llm(tmp_path / "gpt2", max_model_len=161)
    llm = open_llm(tmp_path / "gpt2", max_model_len=None, dtype="float32")
    assert llm.info.max_model_len == 160
    prompt = [(7 * i) % 250 for i in range(100)]
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    first, resumed = (llm.generate([prompt], params, use_tqdm=False)[0] for _ in range(2))
    (choice,) = first.outputs
    assert (len(choice.token_ids), choice.finish_reason, resumed.num_cached_tokens) == (60, "length", 96)
    assert resumed.outputs[0].token_ids == choice.token_ids
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + choice.token_ids])).logits[0]
    assert logits[99:-1].argmax(-1).tolist() == choice.token_ids
    for length in (160, 161, 300):
        with pytest.raises(RequestTooLong, match="context is 160 tokens"):
            llm.generate([[1] * length], params)


def write_shards(folder: Path) -> tuple[Path, Path]:
    """Split the weights of ``folder`` in two, with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for file, half in zip(files, halves, strict=True):
        save_file({name: tensors[name] for name in half}, str(file))
    weight_map = {name: file.name for file, half in zip(files, halves, strict=True) for name in half}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return files[0], files[1]


def replace_tensor(file: Path, name: str, tensor: torch.Tensor) -> None:
    save_file({**load_file(file), name: tensor}, str(file))


Q_PROJ, NORM = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
DAMAGES: dict[str, tuple[str, Callable[[Path, Path], Any]]] = {
    "missing": (r"00002-of-00002.* is missing", lambda _, second: second.unlink()),
    "renamed": (r"00002-of-00002.* is missing", lambda _, second: second.rename(second.with_name("x.safetensors"))),
    "truncated": (r"00002-of-00002.*expected \d+ bytes, found", lambda _, s: s.write_bytes(s.read_bytes()[:-1024])),
    "halved": (r"00002-of-00002.*expected \d+ bytes, found", lambda _, s: s.write_bytes(s.read_bytes()[:5000])),
    "trailing": (r"00002-of-00002.*expected \d+ bytes, found", lambda _, s: s.write_bytes(s.read_bytes() + b"0")),
    "huge header": (r"00002-of-00002.*header claims", lambda _, s: s.write_bytes(b"\0" * 7 + b"\x10" + s.read_bytes())),
    "pointer": (r"Git LFS", lambda _, s: s.write_text("version https://git-lfs.github.com/spec/v1\nsize 99999\n")),
    "shape": (r"q_proj\.weight.*\[48, 47\]", lambda _, s: replace_tensor(s, Q_PROJ, torch.zeros(48, 47))),
    "twice": (r"norm\.weight is stored twice", lambda first, _: replace_tensor(first, NORM, torch.ones(48))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_stop_the_engine_from_starting(
    open_llm: OpenLLM, copy_of_llama: Callable[..., Path], damage: str
) -> None:
    """WGT-01, WGT-02: by the name of the file or the tensor, before anything is served."""
    message, spoil = DAMAGES[damage]
    folder = copy_of_llama()
    spoil(*write_shards(folder))
    with pytest.raises(CorruptWeights, match=message):
        open_llm(folder)


def test_stray_files_beside_the_shards_change_nothing(
    open_llm: OpenLLM, copy_of_llama: Callable[..., Path], tiny_llama: Path
) -> None:
    """WGT-01: what the index does not name is not read."""
    folder = copy_of_llama()
    write_shards(folder)
    save_file({NORM: torch.zeros(48)}, str(folder / "stray.safetensors"))
    answers = [open_llm(path).generate("x", GREEDY, use_tqdm=False)[0] for path in (folder, tiny_llama)]
    assert answers[0].outputs == answers[1].outputs


def test_a_server_of_damaged_weights_exits_with_one_sentence(copy_of_llama: Callable[..., Path]) -> None:
    """WGT-01, WGT-02: status 1, the file's name, and no port was opened."""
    folder = copy_of_llama()
    write_shards(folder)[1].unlink()
    command = [sys.executable, "-m", "pageport", "serve", "--model", str(folder), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "model-00002-of-00002.safetensors" in ended.stderr.splitlines()[-1]
    assert "interrupted" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr and "http://" not in ended.stderr + ended.stdout


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_is_the_name_of_an_adapter_is_not_found(
    open_llm: OpenLLM, tiny_llama: Path, path: str, stream: bool
) -> None:
    """LRA-01: none can be loaded yet, so every name but the base's is unknown; base requests go on."""
    server = LocalServer(open_llm(tiny_llama, served_model_name="base"))
    before = server.say(path, max_tokens=8).text
    for name in ("my-lora", "base:my-lora", "base/my-lora"):
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "model": name, "stream": stream}
        response = server.post(path, **body)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
        assert name in response.json()["error"]["message"]
    assert server.say(path, max_tokens=8, model="base").text == before


@pytest.mark.parametrize("action", ["load", "unload"])
def test_adapters_are_not_loaded_over_http(open_llm: OpenLLM, tiny_llama: Path, action: str) -> None:
    """LRA-01."""
    response = LocalServer(open_llm(tiny_llama)).post(f"/v1/{action}_lora_adapter", lora_name="x", lora_path="/x")
    assert response.status_code == 404


@pytest.mark.parametrize("setting", ["enable_lora", "lora_modules", "max_lora_rank"])
def test_adapter_settings_are_refused_by_name(open_llm: OpenLLM, tiny_llama: Path, setting: str) -> None:
    """LRA-01, KVC-03."""
    with pytest.raises(ConfigurationError, match=f"Unknown setting '{setting}'"):
        open_llm(tiny_llama, **{setting: 1})


def test_an_adapter_in_place_of_a_model_is_told(open_llm: OpenLLM, tmp_path: Path) -> None:
    """LRA-01: a folder that holds only what was fine-tuned names itself so."""
    save_file({"base_model.model.q_proj.lora_A.weight": torch.zeros(8, 48)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    with pytest.raises(UnsupportedModel, match=r"holds an adapter .* not supported yet\. Give its base model"):
        open_llm(tmp_path)
