"""Is what a model asks for covered by a device's capabilities? Asked once, while starting."""

from pageport.backend.capabilities import Capabilities
from pageport.backend.kv import AttentionParams, KVSpec
from pageport.errors import UnsupportedFeature


def check_kv(capabilities: Capabilities, spec: KVSpec) -> None:
    """Check a cache group.

    Raises:
        UnsupportedFeature: names what is not covered and what is.
    """
    _check("cache kind", spec.kind, capabilities.kv_kinds)
    _check("KV dtype", spec.dtype, capabilities.kv_dtypes)
    _check("block size", spec.block_size, capabilities.block_sizes)
    if capabilities.head_sizes:
        _check("head size", spec.head_size, capabilities.head_sizes)
        _check("head size", spec.value_head_size, capabilities.head_sizes)


def check_attention(capabilities: Capabilities, params: AttentionParams) -> None:
    """Check one layer's attention: a variant that is not declared is refused, never left out.

    Raises:
        UnsupportedFeature: names the variant and what is covered.
    """
    for variant in ("sliding_window", "softcap", "sinks", "alibi"):
        if getattr(params, variant) is not None:
            _check("attention variant", variant, capabilities.attention_variants)


def _check(what: str, wanted: object, covered: tuple[object, ...]) -> None:
    if wanted not in covered:
        raise UnsupportedFeature(
            f"This device does not do {what} {wanted}; it does {', '.join(map(str, covered)) or 'none'}. "
            "Change the setting or the model, or use another backend (pageport backends)."
        )
