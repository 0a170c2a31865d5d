"""``Precision``: in which numbers a model is kept and computed: its weights, its arithmetic and its cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pageport.backend.capabilities import Capabilities
from pageport.backend.weights import BLOCK_SCHEMES
from pageport.config import KV_CACHE_DTYPES, QUANTISATIONS, EngineConfig, ModelConfig, Quantisation
from pageport.errors import ConfigurationError, UnsupportedFeature

# `--kv-cache-dtype` as people spell it, and the dtype's name in torch.
KV_DTYPES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float32",
        "bfloat16": "bfloat16",
        "bf16": "bfloat16",
        "float16": "float16",
        "fp16": "float16",
        "fp8": "float8_e4m3fn",
        "fp8_e4m3": "float8_e4m3fn",
        "float8_e4m3fn": "float8_e4m3fn",
        "fp8_e5m2": "float8_e5m2",
        "float8_e5m2": "float8_e5m2",
        "int8": "int8",
    }
)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes are named as in torch."""

    compute_dtype: str
    kv_dtype: str
    # Turn stored quantised weights into numbers of the compute dtype, even if the device could keep them?
    dequantise: bool = False
    # The form of the device's own that every matrix gets while loading.
    quantisation: Quantisation | None = None

    def describe_weights(self, stored_scheme: str, capabilities: Capabilities) -> str:
        """Say in a few words what becomes of weights that the checkpoint stores in ``stored_scheme``."""
        rounds = ", activations quantised to int8" if capabilities.quantises_activations else ""
        if self.quantisation is not None:
            head = "" if self.quantisation == "int8" else " (embedding and head int8)"
            return f"{stored_scheme} weights quantised to {self.quantisation}{head}{rounds}"
        if self.dequantise or stored_scheme not in capabilities.weight_schemes:
            return f"{stored_scheme} weights computed as {self.compute_dtype}"
        if not rounds or stored_scheme not in BLOCK_SCHEMES:
            return f"weights kept as {stored_scheme}"
        return f"weights kept as {stored_scheme}{rounds} (--dtype float32 turns both off)"


def choose_precision(config: EngineConfig, stored_scheme: str, capabilities: Capabilities) -> Precision:
    """Settle what the settings ask for on this device, for a checkpoint stored in ``stored_scheme``.

    ``--dtype auto`` takes what the device prefers, and never turns bfloat16 into float16.

    Raises:
        ConfigurationError: a name that no setting has.
        UnsupportedFeature: the device does not compute, or does not quantise, as asked.
    """
    quantisation = choose_quantisation(config.model, capabilities)
    compute_dtype = _compute_dtype(config.model.dtype, stored_scheme, capabilities)
    return Precision(
        compute_dtype=compute_dtype,
        kv_dtype=choose_kv_dtype(
            config.cache.kv_cache_dtype,
            (capabilities.preferred_kv_dtype if config.model.dtype == "auto" else None) or compute_dtype,
        ),
        dequantise=config.model.dtype != "auto" and quantisation is None,
        quantisation=quantisation,
    )


def choose_kv_dtype(asked: str, default: str) -> str:
    """Return torch's name of the dtype keys and values are kept in, ``default`` for "auto".

    Raises:
        ConfigurationError: there is none of this name.
    """
    if asked == "auto":
        return default
    if asked not in KV_DTYPES:
        raise ConfigurationError(f"--kv-cache-dtype is {asked!r}; use one of {', '.join(KV_CACHE_DTYPES)}.")
    return KV_DTYPES[asked]


def choose_quantisation(config: ModelConfig, capabilities: Capabilities) -> Quantisation | None:
    """Return what matrices are quantised to while loading.

    Raises:
        ConfigurationError: there is none of this name.
        UnsupportedFeature: the device does not do it.
    """
    asked = config.quantization
    if asked is None or asked == "none":
        return None
    chosen: Quantisation | None = next((name for name in QUANTISATIONS if name == asked), None)
    if chosen is None:
        raise ConfigurationError(
            f"--quantization is {asked!r}; it takes {', '.join(QUANTISATIONS)}, which quantise any checkpoint while "
            "loading. A GGUF file needs no setting: its own format is kept where the backend can. Checkpoints that "
            "other tools quantised are not read: use the model's GGUF file, or its unquantised weights."
        )
    if chosen not in capabilities.quantisations:
        raise UnsupportedFeature(
            f"--quantization {chosen} is not done by this device; it does "
            f"{', '.join(capabilities.quantisations) or 'none'}. Leave it out, use a quantised GGUF file, or use "
            "another backend (pageport backends)."
        )
    return chosen


def _compute_dtype(asked: str, stored_scheme: str, capabilities: Capabilities) -> str:
    if asked == "auto":
        return capabilities.preferred_dtype
    if asked not in capabilities.compute_dtypes:
        raise UnsupportedFeature(
            f"--dtype {asked} is not computed by this device; it takes {', '.join(capabilities.compute_dtypes)}."
        )
    if asked == "float16" and stored_scheme == "bf16":
        raise UnsupportedFeature(
            "--dtype float16 would overflow a bfloat16 checkpoint's range. Use --dtype auto, bfloat16 or float32."
        )
    return asked
