"""Gemma 3, text only: Gemma 2's layers with q and k norms, and another rotary base in the local layers."""

from collections.abc import Mapping

from pageport.errors import UnsupportedModel
from pageport.models.architectures._config import Config, integer, layer_windows, optional_integer, optional_number
from pageport.models.architectures._parts import layer_module, rms_norm
from pageport.models.architectures._rope_config import rope_spec
from pageport.models.architectures.gemma import gemma_decoder, gemma_heads
from pageport.models.architectures.gemma2 import four_norm_layer
from pageport.models.spec import DecoderSpec, LayerSpec, RopeSpec

_GLOBAL_ROPE, _LOCAL_ROPE = 0, 1


def decoder_spec(config: Config, names: frozenset[str]) -> DecoderSpec:
    """Describe ``Gemma3ForCausalLM``."""
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel("The model attends in both directions, as for embeddings; it generates no text.")
    return gemma_decoder(
        config,
        names,
        layers=[_layer(config, index, window) for index, window in enumerate(_windows(config))],
        ropes=_ropes(config),
        # Already the stretched length, whatever rope_scaling says.
        max_positions=integer(config, "max_position_embeddings", 131_072),
        logit_softcap=optional_number(config, "final_logit_softcapping"),
    )


def _layer(config: Config, index: int, window: int | None) -> LayerSpec:
    head_size = gemma_heads(config).head_size
    module = f"{layer_module(index)}.self_attn"
    return four_norm_layer(
        config,
        index,
        window=window,
        softcap=optional_number(config, "attn_logit_softcapping"),
        rope=_GLOBAL_ROPE if window is None else _LOCAL_ROPE,
        q_norm=rms_norm(config, f"{module}.q_norm", head_size, unit_offset=True),
        k_norm=rms_norm(config, f"{module}.k_norm", head_size, unit_offset=True),
    )


def _windows(config: Config) -> list[int | None]:
    pattern = integer(config, "sliding_window_pattern", 6)
    kinds = [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(integer(config, "num_hidden_layers"))
    ]
    return layer_windows(config, kinds, optional_integer(config, "sliding_window", 4096))


def _ropes(config: Config) -> tuple[RopeSpec, RopeSpec]:
    """Return the global and the local rope; an old config's ``rope_scaling`` is meant for the global one only."""
    config = {"max_position_embeddings": 131_072, **config}
    head_size = gemma_heads(config).head_size
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping) and not config.get("rope_scaling"):
        local = config
    else:
        local = {
            **config,
            "rope_scaling": None,
            "rope_parameters": None,
            "rope_theta": config.get("rope_local_base_freq", 10_000.0),
        }
    return (
        rope_spec(config, head_size, layer_type="full_attention", default_base=1_000_000.0),
        rope_spec(local, head_size, layer_type="sliding_attention", default_base=10_000.0),
    )
