"""Devices whose attention is a library's: what they pass it, against the float64 oracle; and what they refuse."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pageport_cuda.device
import pageport_xpu.device
from pageport.backend import AttentionParams, Capabilities, KVSpec, Rank
from pageport.backend.batch import AttentionBatch
from pageport.backend.device import Device
from pageport.backend.op_table import compile_ops
from pageport.errors import BackendUnavailable, ConfigurationError, UnsupportedFeature
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.attention_verdict import check_case
from pageport.testing.conformance.check import Level, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import all_checks, run_check
from pageport_cuda.flash_attention_device import FLASH_ATTENTION, FlashAttentionDevice
from pageport_cuda.flashinfer_device import FLASHINFER, FlashInferDevice
from pageport_cuda.plugin import CudaBackend
from pageport_triton.accelerator import Accelerator
from pageport_triton.architectures import INTERPRETER
from pageport_triton.attention_option import import_library, read_attention
from pageport_triton.library_device import LibraryDevice
from pageport_triton.triton_device import OPS, TritonDevice
from pageport_xpu.plugin import XpuBackend
from pageport_xpu.xpu_kernels_device import XPU_KERNELS, XpuKernelsDevice

from . import library_fakes
from .recorded_device import HOST
from .recording_accelerator import RecordingModule
from .test_open_device import fake_torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

# Decodes, padding of both kinds, prompts, chunks behind a cached prefix.
ROWS = (Row(1), Row(40), Row(0), Row(5, 5), Row(29, 12), Row(0, 3), Row(70, 2))
SLIDING = {"kind": "sliding", "sliding_window": 21, "num_heads": 2, "num_kv_heads": 1}
USUAL = AttentionCase(rows=ROWS, compute_dtype="float16", kv_dtype="float16", block_size=16, head_size=64)
# The class, the fake, and what differs from the usual case.
LIBRARIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "flashinfer": (FlashInferDevice, library_fakes.FLASHINFER, {}),
    "flash-attn": (FlashAttentionDevice, library_fakes.FLASH_ATTN, {"block_size": 256}),
    "vllm-xpu-kernels": (XpuKernelsDevice, library_fakes.XPU_KERNELS, {"block_size": 64}),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"num_heads": 6},
    "not causal": {"causal": False},
    "not causal, window": SLIDING | {"causal": False},
    "window in all blocks": {"sliding_window": 30},
    "bfloat16 over float16": {"compute_dtype": "bfloat16", "num_heads": 8, "extra_columns": 2},
    "bfloat16": {"compute_dtype": "bfloat16", "kv_dtype": "bfloat16", "is_strided": False},
}


def open_device(kind: Any, fake: Any) -> Any:
    module: Any = RecordingModule()
    return kind(Accelerator(module, HOST, pinned=module.pinned), HOST, INTERPRETER, fake)


def context_of(device: LibraryDevice) -> Context:
    context = Context(CudaBackend)
    context._device = device
    return context


class LibraryBackend(CudaBackend):
    """Opens the device of one library, over its fake."""

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> Device:  # noqa: B008 - frozen
        kind, fake, _ = LIBRARIES[options["library"]]
        device: Device = open_device(kind, fake)
        return device


def open_context(name: str) -> Context:
    return Context(LibraryBackend, options={"library": name})


class BothLayers(FlashInferDevice):
    """Attends over layer 0, too, which has the same formula."""

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        for each in (0, layer):
            super().attention(pool, each, query, params, batch, out)


class RowOpsByReference(TritonDevice):
    """Core's reference for what has nothing to do with the cache: an engine's steps are then quick enough."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, features={}, weight_schemes=(), quantisations=())


for _name in (*OPS, "linear", "embed", "prepare_weight", "weight_bytes"):
    setattr(RowOpsByReference, _name, getattr(Device, _name))


def failures(
    context: Context, levels: Sequence[Level], *, only: Sequence[str] = (), share: slice = slice(None)
) -> list[str]:
    checks = [check for check in all_checks(context, levels) if not only or check.name in only][share]
    assert checks and len(checks) >= len(only), "a check has another name"
    outcomes = [run_check(context, check) for check in checks]
    return [f"{o.name}: {o.message}" for o in outcomes if o.status is not Status.PASSED]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_attention_are_those_of_the_oracle_over_dense_tokens(variant: str) -> None:
    name = "vllm-xpu-kernels"
    check_case(open_context(name), replace(USUAL, **(LIBRARIES[name][2] | VARIANTS[variant])))


@pytest.mark.parametrize(("name", "variant"), [("flashinfer", "not causal"), ("flash-attn", "plain")])
def test_attention_of_a_library_is_that_of_the_oracle(name: str, variant: str) -> None:
    check_case(open_context(name), replace(USUAL, **(LIBRARIES[name][2] | VARIANTS[variant])))


@pytest.mark.full
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["flashinfer", "flash-attn"])
def test_variants_of_attention_are_those_of_the_oracle(name: str, variant: str) -> None:
    check_case(open_context(name), replace(USUAL, **(LIBRARIES[name][2] | VARIANTS[variant])))


@pytest.mark.parametrize(("name", "softcap"), [("flashinfer", 6.0), ("flash-attn", 6.0), ("vllm-xpu-kernels", None)])
def test_blocks_left_of_the_window_are_not_given_to_a_library(name: str, softcap: float | None) -> None:
    case = replace(USUAL, softcap=softcap, **(LIBRARIES[name][2] | SLIDING))
    size = case.block_size
    check_case(open_context(name), replace(case, rows=(Row(2 * size + 19), Row(size + 1), Row(size + 30, 2))))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(3))
@pytest.mark.parametrize("name", LIBRARIES)
def test_library_device_passes_the_suite_over_its_fake(name: str, share: int) -> None:
    failed = failures(open_context(name), [Level.MEMORY, Level.ATTENTION], share=slice(share, None, 3))
    assert not failed, "\n".join(failed)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("vllm-xpu-kernels", ("together", "preempted, swapped")),
        ("flashinfer", ("together", "preempted, swapped")),
        ("flash-attn", ("together",)),
    ],
    ids=("vllm-xpu-kernels", "flashinfer", "flash-attn"),
)
def test_engine_runs_over_a_library(name: str, checks: Sequence[str]) -> None:
    kind, fake, _ = LIBRARIES[name]
    device = open_device(type(kind.__name__, (kind, RowOpsByReference), {}), fake)
    failed = failures(context_of(device), [Level.ENGINE], only=[f"engine/llama/{check}" for check in checks])
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", LIBRARIES)
def test_op_table_says_whose_attention_it_is(name: str) -> None:
    device = open_context(name).device
    served = compile_ops(device, strict=True).implementations
    for op in ("decode_attention", "prefill_attention"):
        kind = type(device)
        assert served[op].where == f"{kind.__module__}:{kind.__qualname__}.{op}"
    assert served["rms_norm"].where.startswith("pageport_triton.")
    assert "graph" not in device.capabilities.features
    assert device.capabilities.pipeline_depth == 0


@pytest.mark.parametrize(
    ("name", "spec", "params", "message"),
    [
        ("flashinfer", {}, {"alibi": torch.ones(4)}, "does not cover alibi"),
        ("flashinfer", {}, {"sinks": torch.ones(4)}, "does not cover sinks"),
        ("flashinfer", {"head_size": 96}, {}, "heads of 96"),
        ("flashinfer", {"dtype": "int8"}, {}, "a cache of int8"),
        ("flashinfer", {"value_head_size": 128}, {}, "values of 128"),
        ("flash-attn", {"block_size": 16}, {}, r"blocks of 16 \(it does: 256\)"),
        ("vllm-xpu-kernels", {"block_size": 64}, {"softcap": 5.0}, "does not cover softcap"),
        ("vllm-xpu-kernels", {"block_size": 64, "num_kv_heads": 1}, {}, r"KV head: 32 \(it does: 1 … 16\)"),
    ],
)
def test_what_a_library_does_not_cover_is_refused(
    name: str, spec: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    usual: dict[str, Any] = {"num_layers": 1, "num_kv_heads": 4, "head_size": 64, "value_head_size": 64}
    usual |= {"block_size": 16, "dtype": "float16"} | spec
    if "head_size" in spec:
        usual["value_head_size"] = spec["head_size"]
    with pytest.raises(UnsupportedFeature, match=rf"attention={name}.*{message}.*attention=triton"):
        open_context(name).device.check_attention(KVSpec(**usual), 32, AttentionParams(scale=1.0, **params))


def test_flashinfer_plans_once_for_all_layers_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[str] = []
    keep = library_fakes.PagedWrapper.keep

    def count(wrapper: library_fakes.PagedWrapper, **planned: Any) -> None:
        plans.append(type(wrapper).__name__)
        keep(wrapper, **planned)

    monkeypatch.setattr(library_fakes.PagedWrapper, "keep", count)
    device = open_device(BothLayers, library_fakes.FLASHINFER)
    check_case(context_of(device), USUAL)
    assert plans == ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"]
    assert not device._decodes and not device._prefills  # the pool is freed


@pytest.mark.parametrize(
    ("module", "kind", "attention"),
    [
        (pageport_cuda.device, "FlashInferDevice", "flashinfer"),
        (pageport_cuda.device, "FlashAttentionDevice", "flash-attn"),
        (pageport_xpu.device, "XpuKernelsDevice", "vllm-xpu-kernels"),
    ],
)
def test_option_decides_which_device_is_opened(
    monkeypatch: pytest.MonkeyPatch, module: Any, kind: str, attention: str
) -> None:
    monkeypatch.setattr(module, "torch", fake_torch(get_device_capability=lambda device: (9, 0)))
    monkeypatch.setattr(module, "import_library", lambda library: library.name)
    monkeypatch.setattr(module, kind, lambda accelerator, where, architecture, library: library)
    assert module.open_device(0, attention) == attention


@pytest.mark.parametrize("library", [FLASHINFER, FLASH_ATTENTION, XPU_KERNELS], ids=lambda library: library.name)
def test_library_must_be_installed_new_enough_and_whole(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    def refused(version: Any, module: Any, message: str) -> None:
        monkeypatch.setattr("pageport_triton.attention_option.version", version)
        monkeypatch.setitem(sys.modules, library.module, module)
        with pytest.raises(BackendUnavailable, match=rf"attention={library.name} needs .*{message}.*attention=triton"):
            import_library(library)

    with pytest.raises(BackendUnavailable, match=f"{library.distribution}, which is not installed"):
        import_library(library)
    refused(lambda name: "0.0.9.post1", None, "0.0.9.post1 is installed")
    refused(lambda name: "99.0rc1", None, "cannot be imported")
    refused(lambda name: "99.0", SimpleNamespace(), "which 99.0 does not have")


@pytest.mark.parametrize(
    ("library", "module"),
    [
        (FLASHINFER, library_fakes.FLASHINFER),
        (FLASH_ATTENTION, library_fakes.FLASH_ATTN),
        (XPU_KERNELS, library_fakes.XPU_KERNELS),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_library_that_has_what_is_called_is_imported(
    monkeypatch: pytest.MonkeyPatch, library: Any, module: Any
) -> None:
    floor = ".".join(map(str, library.floor))
    monkeypatch.setattr("pageport_triton.attention_option.version", lambda name: f"{floor}.1+cu130")
    monkeypatch.setitem(sys.modules, library.module, module)
    assert import_library(library) is module


def test_auto_is_triton_and_other_values_are_refused() -> None:
    assert read_attention({}, "cuda", ["flashinfer"]) == "triton"
    assert read_attention({"attention": "auto"}, "cuda", ["flashinfer"]) == "triton"
    assert read_attention({"attention": "flashinfer"}, "cuda", ["flashinfer"]) == "flashinfer"
    with pytest.raises(ConfigurationError, match="attention=fast is no option of the cuda backend; use auto, triton, "):
        CudaBackend().open(0, {"attention": "fast"})


def test_ipex_is_refused_with_the_reason() -> None:
    with pytest.raises(BackendUnavailable, match=r"refuses every torch but 2\.8.*\(torch 2\.\d+.* is installed\)"):
        XpuBackend().open(0, {"attention": "ipex"})
