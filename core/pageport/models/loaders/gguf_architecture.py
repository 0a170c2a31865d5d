"""``GgufArchitecture``: how one of llama.cpp's architectures stores what transformers names.

The conventions are those of llama.cpp's convert_hf_to_gguf.py; the ``gguf`` package knows which GGUF name belongs to
which of transformers' names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import gguf

from pageport.errors import UnsupportedModel
from pageport.models.spec import RowOrder

_LLAMA_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_FOUR_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_PHI3_LAYER = (
    "input_layernorm",
    "self_attn.qkv_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_up_proj",
    "mlp.down_proj",
)
_GPT2_MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
_GPT_NEOX_LAYER = (
    "input_layernorm",
    "attention.query_key_value",
    "attention.dense",
    "post_attention_layernorm",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
)


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """One architecture; module names are transformers'."""

    name: str  # general.architecture
    model: str  # the class in config.json's "architectures"
    layer_modules: tuple[str, ...]
    layer_prefix: str = "model.layers."
    outer_modules: tuple[str, ...] = ("model.embed_tokens", "model.norm", "lm_head")
    # Modules whose rows the converter turns from rotate-half pairs to neighbouring ones, with the count of heads.
    permuted_modules: Mapping[str, str] = field(default_factory=dict)
    # The converter takes the interleaved q, k and v of every head apart.
    splits_qkv: str | None = None
    # The converter adds one to norm weights, so that the norm multiplies by w instead of 1 + w.
    norm_offset: float = 0.0
    # Modules that transformers stores as [in, out]; GGUF stores every matrix as [out, in].
    conv1d_modules: tuple[str, ...] = ()

    def gguf_names(self, num_layers: int) -> Iterator[tuple[str, str]]:
        """Yield transformers' name and GGUF's for every tensor the architecture may have."""
        # One layer's names are enough to know all; the package's map for a deep model takes a tenth of a second.
        known = gguf.get_tensor_name_map(_architecture_id(self.name), 1)
        for module in self.outer_modules:
            yield from _weight_and_bias(module, known.get_name(module))
        for module in self.layer_modules:
            first = known.get_name(f"{self.layer_prefix}0.{module}")
            for index in range(num_layers):
                layer = first.replace("blk.0.", f"blk.{index}.") if first else None
                yield from _weight_and_bias(f"{self.layer_prefix}{index}.{module}", layer)

    def row_order(self, name: str, rows: int, config: Mapping[str, int]) -> RowOrder | None:
        """Return what turns stored rows of transformers' tensor ``name`` back into transformers' order."""
        module = self._layer_module(name)
        if module is None:
            return None
        if module in self.permuted_modules:
            num_heads = config[self.permuted_modules[module]]
            return RowOrder(shape=(num_heads, rows // num_heads // 2, 2), axes=(0, 2, 1))
        if module == self.splits_qkv:
            num_heads = config["num_attention_heads"]
            return RowOrder(shape=(3, num_heads, rows // num_heads // 3), axes=(1, 0, 2))
        return None

    def offset(self, name: str) -> float:
        """Return what the converter added to the vector ``name``."""
        return self.norm_offset if name.endswith("norm.weight") else 0.0

    def is_conv1d(self, name: str) -> bool:
        """Whether transformers stores the tensor ``name`` as [in, out]."""
        return name.endswith(".weight") and self._layer_module(name) in self.conv1d_modules

    def _layer_module(self, name: str) -> str | None:
        """Return the module within its layer: ``self_attn.q_proj`` of ``model.layers.3.self_attn.q_proj.weight``."""
        if not name.startswith(self.layer_prefix):
            return None
        return name.removeprefix(self.layer_prefix).partition(".")[2].rpartition(".")[0]


def gguf_architecture(name: object) -> GgufArchitecture:
    """Return the architecture a file's ``general.architecture`` names.

    Raises:
        UnsupportedModel: not one of those known; the message lists them.
    """
    known = {architecture.name: architecture for architecture in _ARCHITECTURES}
    if not isinstance(name, str) or name not in known:
        raise UnsupportedModel(f"The GGUF architecture {name!r} is not supported. Supported: {', '.join(known)}.")
    return known[name]


def _architecture_id(name: str) -> gguf.MODEL_ARCH:
    return {known: architecture for architecture, known in gguf.MODEL_ARCH_NAMES.items()}[name]


def _weight_and_bias(module: str, gguf_module: str | None) -> Iterator[tuple[str, str]]:
    if gguf_module is not None:
        yield f"{module}.weight", f"{gguf_module}.weight"
        yield f"{module}.bias", f"{gguf_module}.bias"


_ARCHITECTURES = (
    GgufArchitecture(
        name="llama",
        model="LlamaForCausalLM",
        layer_modules=_LLAMA_LAYER,
        permuted_modules={"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"},
    ),
    GgufArchitecture(name="qwen2", model="Qwen2ForCausalLM", layer_modules=_LLAMA_LAYER),
    GgufArchitecture(name="qwen3", model="Qwen3ForCausalLM", layer_modules=_LLAMA_LAYER + _QK_NORMS),
    GgufArchitecture(name="gemma", model="GemmaForCausalLM", layer_modules=_LLAMA_LAYER, norm_offset=1.0),
    GgufArchitecture(
        name="gemma2", model="Gemma2ForCausalLM", layer_modules=_LLAMA_LAYER + _FOUR_NORMS, norm_offset=1.0
    ),
    GgufArchitecture(
        name="gemma3", model="Gemma3ForCausalLM", layer_modules=_LLAMA_LAYER + _FOUR_NORMS + _QK_NORMS, norm_offset=1.0
    ),
    GgufArchitecture(name="phi3", model="Phi3ForCausalLM", layer_modules=_PHI3_LAYER),
    GgufArchitecture(
        name="gpt2",
        model="GPT2LMHeadModel",
        layer_modules=("ln_1", "ln_2", *_GPT2_MATRICES),
        layer_prefix="transformer.h.",
        outer_modules=("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"),
        conv1d_modules=_GPT2_MATRICES,
    ),
    GgufArchitecture(
        name="gptneox",
        model="GPTNeoXForCausalLM",
        layer_modules=_GPT_NEOX_LAYER,
        layer_prefix="gpt_neox.layers.",
        outer_modules=("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out"),
        splits_qkv="attention.query_key_value",
    ),
)
