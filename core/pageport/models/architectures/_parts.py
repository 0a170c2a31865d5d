"""What the architecture files share: projections, attention, MLP, layer and model of the LLaMA kind."""

from collections.abc import Sequence
from dataclasses import dataclass

from pageport.errors import UnsupportedModel
from pageport.models.architectures._config import Config, activation, integer, number
from pageport.models.spec import (
    AttentionSpec,
    BiasPart,
    DecoderSpec,
    LayerSpec,
    MatrixPart,
    MLPSpec,
    NormSpec,
    ProjectionSpec,
    RopeSpec,
)

# Rotary frequencies that old checkpoints store; they follow from the config.
INVERSE_FREQUENCIES = r".*rotary_emb\.inv_freq"


@dataclass(frozen=True, kw_only=True)
class Heads:
    """How attention splits its features."""

    num_heads: int
    num_kv_heads: int
    head_size: int

    @property
    def query_size(self) -> int:
        """Features of all queries."""
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        """Features of all keys, and of all values."""
        return self.num_kv_heads * self.head_size


def heads(config: Config, default_head_size: int | None = None) -> Heads:
    """Read the head counts; heads are ``hidden_size / num_heads`` wide unless the config or the default says else.

    Raises:
        UnsupportedModel: KV heads do not divide the heads.
    """
    num_heads = integer(config, "num_attention_heads")
    num_kv_heads = integer(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModel(f"The model has {num_kv_heads} KV heads, which do not divide its {num_heads} heads.")
    head_size = integer(config, "head_dim", default_head_size or integer(config, "hidden_size") // num_heads)
    return Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size)


def projection(in_features: int, *matrices: tuple[str, int], bias: bool = False) -> ProjectionSpec:
    """Stack matrices, each given as module name and rows; ``bias``: each has one."""
    return ProjectionSpec(
        parts=tuple(MatrixPart(name=f"{name}.weight", rows=rows) for name, rows in matrices),
        in_features=in_features,
        biases=tuple(BiasPart(name=f"{name}.bias", rows=rows) for name, rows in matrices) if bias else (),
    )


def rms_norm(config: Config, module: str, features: int | None = None, unit_offset: bool = False) -> NormSpec:
    """Describe an RMS norm of the config's epsilon, over the hidden features unless told otherwise."""
    return NormSpec(
        kind="rms",
        weight=f"{module}.weight",
        features=features or integer(config, "hidden_size"),
        epsilon=number(config, "rms_norm_eps", 1e-6),
        unit_offset=unit_offset,
    )


def layer_norm(module: str, features: int, epsilon: float) -> NormSpec:
    """Describe a layer norm with a bias."""
    return NormSpec(kind="layer", weight=f"{module}.weight", bias=f"{module}.bias", features=features, epsilon=epsilon)


def attention(
    config: Config,
    module: str,
    split: Heads,
    *,
    rope: int = 0,
    sliding_window: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    q_norm: NormSpec | None = None,
    k_norm: NormSpec | None = None,
) -> AttentionSpec:
    """Describe attention whose projections are stored as q_proj, k_proj, v_proj and o_proj."""
    hidden_size = integer(config, "hidden_size")
    return AttentionSpec(
        num_heads=split.num_heads,
        num_kv_heads=split.num_kv_heads,
        head_size=split.head_size,
        qkv=projection(
            hidden_size,
            (f"{module}.q_proj", split.query_size),
            (f"{module}.k_proj", split.kv_size),
            (f"{module}.v_proj", split.kv_size),
            bias=qkv_bias,
        ),
        output=projection(split.query_size, (f"{module}.o_proj", hidden_size), bias=output_bias),
        scale=split.head_size**-0.5 if scale is None else scale,
        rope=rope,
        sliding_window=sliding_window,
        softcap=softcap,
        q_norm=q_norm,
        k_norm=k_norm,
    )


def gated_mlp(
    config: Config, module: str, *, key: str = "hidden_act", default: str = "silu", bias: bool = False
) -> MLPSpec:
    """Describe an MLP stored as gate_proj, up_proj and down_proj."""
    hidden_size = integer(config, "hidden_size")
    width = integer(config, "intermediate_size")
    return MLPSpec(
        up=projection(hidden_size, (f"{module}.gate_proj", width), (f"{module}.up_proj", width), bias=bias),
        down=projection(width, (f"{module}.down_proj", hidden_size), bias=bias),
        activation=activation(config, key, default),
        gated=True,
    )


def llama_layer(config: Config, index: int, attention: AttentionSpec, mlp: MLPSpec) -> LayerSpec:
    """Describe a layer with an RMS norm before attention and one before the MLP."""
    module = layer_module(index)
    return LayerSpec(
        attention_norm=rms_norm(config, f"{module}.input_layernorm"),
        attention=attention,
        mlp_norm=rms_norm(config, f"{module}.post_attention_layernorm"),
        mlp=mlp,
    )


def llama_decoder(
    config: Config,
    names: frozenset[str],
    *,
    layers: Sequence[LayerSpec],
    ropes: tuple[RopeSpec, ...],
    max_positions: int,
    tied_by_default: bool = False,
    unit_offset: bool = False,
    embedding_scale: float | None = None,
    logit_softcap: float | None = None,
) -> DecoderSpec:
    """Describe a model stored as model.embed_tokens, model.layers, model.norm and lm_head."""
    vocab_size = integer(config, "vocab_size")
    hidden_size = integer(config, "hidden_size")
    return DecoderSpec(
        architecture=config["architectures"][0],
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        max_positions=max_positions,
        embedding=MatrixPart(name="model.embed_tokens.weight", rows=vocab_size),
        layers=tuple(layers),
        final_norm=rms_norm(config, "model.norm", unit_offset=unit_offset),
        lm_head=output_head(config, names, "lm_head", tied_by_default=tied_by_default),
        ropes=ropes,
        embedding_scale=embedding_scale,
        logit_softcap=logit_softcap,
        ignored_tensors=(INVERSE_FREQUENCIES,),
    )


def output_head(
    config: Config, names: frozenset[str], module: str, *, tied_by_default: bool = False
) -> ProjectionSpec | None:
    """Describe the output head, or None when it is the embedding: tied by the config and not stored by itself."""
    is_tied = config.get("tie_word_embeddings")
    if (tied_by_default if is_tied is None else is_tied) and f"{module}.weight" not in names:
        return None
    return projection(integer(config, "hidden_size"), (module, integer(config, "vocab_size")))


def layer_module(index: int) -> str:
    """Return the module name of a layer in a checkpoint of the LLaMA kind."""
    return f"model.layers.{index}"
