"""The demo model itself: its config, its names, and its weights against the gguf package and transformers."""

import subprocess
import sys

import gguf
import pytest
import torch

from pageport.backend.reference.dequantise import dequantise
from pageport.models.loaders import open_checkpoint
from pageport.models.registry import decoder_spec
from pageport.models.resolve import resolve_model
from pageport.models.spec import BiasPart, MatrixPart
from pageport.models.weights import check_names

pytestmark = pytest.mark.smollm2

_OPEN_WITHOUT_READER = """
import sys
from pathlib import Path
import gguf
from pageport.models.loaders import open_checkpoint

def refuse(*_):
    raise SystemExit("GGUFReader was used")

gguf.GGUFReader.__init__ = refuse
open_checkpoint(Path(sys.argv[1]))
print("transformers" in sys.modules)
"""


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(resolve_model("smollm2"))


def _dequantised(checkpoint, module, rows, in_features):
    stored = checkpoint.matrix(MatrixPart(name=f"model.{module}.weight", rows=rows), in_features)
    return dequantise(stored.scheme, stored.read()["blocks"])


def test_the_metadata_becomes_a_config(checkpoint):
    config = {key: checkpoint.config[key] for key in ("architectures", "hidden_size", "head_dim", "rope_theta")}
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "head_dim": 64,
        "rope_theta": 100_000.0,
    }
    assert (checkpoint.config["num_attention_heads"], checkpoint.config["num_key_value_heads"]) == (9, 3)
    assert checkpoint.config["vocab_size"] == 49152
    assert checkpoint.generation_config == {"bos_token_id": 1, "eos_token_id": [2]}
    assert checkpoint.scheme == "q4_1"


def test_every_tensor_has_its_place(checkpoint):
    spec = decoder_spec(checkpoint.config, checkpoint.names())
    check_names(spec, checkpoint)
    assert (len(spec.layers), spec.lm_head) == (30, None)


def test_weights_are_what_the_gguf_package_makes_of_them(checkpoint):
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint.path, "c").tensors}

    def expected(name):
        return torch.from_numpy(gguf.quants.dequantize(stored[name].data, stored[name].tensor_type))

    assert torch.equal(_dequantised(checkpoint, "embed_tokens", 49152, 576), expected("token_embd.weight"))
    assert torch.equal(_dequantised(checkpoint, "layers.3.mlp.down_proj", 576, 1536), expected("blk.3.ffn_down.weight"))
    assert torch.equal(
        _dequantised(checkpoint, "layers.29.self_attn.v_proj", 192, 576), expected("blk.29.attn_v.weight")
    )
    norm = checkpoint.vector(BiasPart(name="model.norm.weight", rows=576))
    assert torch.equal(norm, expected("output_norm.weight"))


@pytest.mark.full
def test_queries_and_keys_are_those_transformers_loads(checkpoint):
    """GGU-01"""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**checkpoint.config))
    loaded = load_gguf_checkpoint(checkpoint.path, return_tensors=True, model_to_load=model)["tensors"]
    for module, rows in (("q_proj", 576), ("k_proj", 192), ("v_proj", 192)):
        name = f"layers.0.self_attn.{module}"
        assert torch.equal(_dequantised(checkpoint, name, rows, 576), loaded[f"model.{name}.weight"]), module


def test_opening_imports_no_reader_that_decodes_the_vocabulary(checkpoint):
    """Start-up: the package's own reader takes seconds for this file."""
    command = [sys.executable, "-c", _OPEN_WITHOUT_READER, str(checkpoint.path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
