"""Numbers that are none: they end the request they belong to, with the reason, and touch nobody else."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pageport import LLM, BeamSearchParams, RequestOutput, SamplingParams
from pageport.errors import UnsupportedFeature
from pageport.testing.tiny_model import write_tiny_llama
from pageport_cpu.device import CpuDevice

from ..server.conftest import events, samples
from .local_server import PATHS, LocalServer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
OpenLLM = Callable[..., LLM]
POISON = 1  # the token whose embedding is NaN
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logit_bias={POISON: -100})
HEALTHY = [[2 + (i + 7 * k) % 240 for i in range(5 + 9 * k)] for k in range(4)]
POISONED = [*range(60, 80), POISON, *range(80, 100)]


def edit(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def poison(embedding: torch.Tensor) -> torch.Tensor:
        embedding[POISON, 3] = torch.nan
        return embedding

    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "poisoned")
    return edit(folder, "model.embed_tokens.weight", poison)


@pytest.fixture(scope="module")
def expected(tiny_llama: Path) -> list[list[int]]:
    """What the same model says without the poison."""
    with LLM(str(tiny_llama), dtype="float32", num_kv_blocks=64, max_model_len=256, max_num_seqs=1) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(HEALTHY, GREEDY, use_tqdm=False)]


def require_failed(output: RequestOutput, num_tokens: int = 0) -> None:
    assert output.error is not None and "not finite" in output.error and "--dtype float32" in output.error
    for choice in output.outputs:
        assert choice.finish_reason == "error"
        assert len(choice.token_ids) == num_tokens


@pytest.mark.parametrize("settings", [{}, {"pipeline_depth": 1}, {"max_num_batched_tokens": 16}, {"num_kv_blocks": 16}])
def test_a_request_with_nan_logits_fails_and_the_others_are_untouched(
    open_llm: OpenLLM, poisoned: Path, expected: list[list[int]], settings: dict[str, int]
) -> None:
    """NUM-01: beside it, behind it, and in the blocks it leaves NaN in."""
    llm = open_llm(poisoned, **settings)
    for round_number in (1, 2, 3):
        outputs = llm.generate([*HEALTHY[:2], POISONED, *HEALTHY[2:]], GREEDY, use_tqdm=False)
        require_failed(outputs.pop(2))
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert llm.stats().finished_total == {"length": 4 * round_number, "error": round_number}
    llm._engine.check()
    assert llm.stats().kv_blocks_used == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_a_request_that_becomes_nan_midway_keeps_what_it_said(
    open_llm: OpenLLM, poisoned: Path, expected: list[list[int]], depth: int
) -> None:
    """NUM-01: its own token is the poison; the token after it never becomes token 0."""
    llm = open_llm(poisoned, pipeline_depth=depth)
    doomed = replace(GREEDY, logit_bias={POISON: 100})
    outputs = llm.generate([HEALTHY[0], "x"], [GREEDY, doomed], use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == expected[0]
    require_failed(outputs[1], num_tokens=1)
    assert outputs[1].outputs[0].token_ids == [POISON]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=3, seed=1, max_tokens=4),
        SamplingParams(n=1, best_of=3, seed=1, max_tokens=4),
        SamplingParams(temperature=0, max_tokens=4, logprobs=5, prompt_logprobs=5),
        SamplingParams(top_p=0.5, top_k=5, min_p=0.1, seed=1, max_tokens=4),
        SamplingParams(allowed_token_ids=[5, 6], max_tokens=4),
        SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, max_tokens=4),
    ],
    ids=["n", "best_of", "logprobs", "filters", "allowed", "penalties"],
)
def test_whatever_is_asked_of_nan_logits_is_an_error(open_llm: OpenLLM, poisoned: Path, params: SamplingParams) -> None:
    """NUM-01: by every path of the sampler."""
    llm = open_llm(poisoned)
    (output,) = llm.generate([POISONED], params, use_tqdm=False)
    require_failed(output)
    assert llm.stats().kv_blocks_used == 0


def test_a_beam_search_over_nan_logits_is_an_error(open_llm: OpenLLM, poisoned: Path) -> None:
    """NUM-01."""
    llm = open_llm(poisoned)
    (output,) = llm.beam_search([POISONED], BeamSearchParams(beam_width=3, max_tokens=4))
    require_failed(output)
    assert llm.stats().kv_blocks_used == 0


@pytest.mark.parametrize("path", PATHS)
def test_a_client_is_told_and_a_metric_counts_it(open_llm: OpenLLM, poisoned: Path, path: str) -> None:
    """NUM-01: an answer of 500 with the reason, or an error as the last event; neighbours get their text."""
    server = LocalServer(open_llm(poisoned))

    def body(text: str, **fields: Any) -> tuple[str, dict[str, Any]]:
        return path, {"prompt": text, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}

    bad, streamed, good = server.post_all([body("a\1b"), body("a\1b", stream=True), body("fine", ignore_eos=True)])
    assert (bad.status_code, good.status_code) == (500, 200)
    assert "not finite" in bad.json()["error"]["message"]
    failure = streamed.json() if streamed.status_code == 500 else events(streamed)[-1]
    assert "not finite" in failure["error"]["message"]
    assert good.json()["usage"]["completion_tokens"] == 4
    assert server.llm.stats().finished_total == {"error": 2, "length": 1}
    seen = samples(server.get("/metrics").text)
    assert seen["pageport:requests_finished_total error"] == 2


@pytest.fixture(scope="module")
def wide_range(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bfloat16 checkpoint whose activations, but no weight, are beyond float16."""
    folder = write_tiny_llama(tmp_path_factory.mktemp("models") / "wide", torch_dtype="bfloat16")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"] *= 20_000
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_a_bfloat16_checkpoint_keeps_its_range(open_llm: OpenLLM, wide_range: Path, dtype: str) -> None:
    """NUM-01: in bfloat16 or, where the device is better at it, in float32."""
    llm = open_llm(wide_range, dtype=dtype)
    assert llm.info.dtype in ("bfloat16", "float32")
    (output,) = llm.generate([HEALTHY[2]], GREEDY, use_tqdm=False)
    assert (output.error, len(set(output.outputs[0].token_ids)) > 3) == (None, True)


def test_a_bfloat16_checkpoint_is_not_run_in_float16(open_llm: OpenLLM, wide_range: Path) -> None:
    """NUM-01: not even when asked for."""
    with pytest.raises(UnsupportedFeature, match=r"--dtype float16 would overflow .* Use --dtype auto, bfloat16 or"):
        open_llm(wide_range, dtype="float16")


def test_a_device_without_bfloat16_takes_float32(
    open_llm: OpenLLM, wide_range: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NUM-01: auto falls back upwards, never to float16; bfloat16 itself is refused with what there is."""
    narrow = replace(CpuDevice().capabilities, compute_dtypes=("float32", "float16"), preferred_dtype="float32")
    monkeypatch.setattr(CpuDevice, "capabilities", property(lambda _: narrow))
    torch_ops = {"backend_options": ("kernels=none",)}
    assert open_llm(wide_range, dtype="auto", **torch_ops).info.dtype == "float32"
    with pytest.raises(UnsupportedFeature, match=r"--dtype bfloat16 is not computed .* takes float32, float16"):
        open_llm(wide_range, dtype="bfloat16", **torch_ops)


def test_activations_beyond_float16_are_an_error_and_no_run_of_token_0(
    open_llm: OpenLLM, wide_range: Path, tmp_path: Path
) -> None:
    """NUM-01: of a checkpoint in float32, which may be run in float16."""
    folder = Path(shutil.copytree(wide_range, tmp_path / "float32"))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.float() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    (output,) = open_llm(folder, dtype="float16").generate([HEALTHY[2]], GREEDY, use_tqdm=False)
    require_failed(output)
