"""Names of floating-point types, as capabilities and configurations spell them, and torch's objects."""

import torch

from pageport.errors import UnsupportedFeature

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KV_DTYPES = _DTYPES | {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's object for a dtype's name.

    Raises:
        UnsupportedFeature: the plain-torch reference does not compute in this type.
    """
    if name not in _DTYPES:
        raise UnsupportedFeature(
            f"The plain-torch reference knows no dtype {name!r}. Use one of {', '.join(_DTYPES)}, "
            "or a backend that declares it."
        )
    return _DTYPES[name]


def torch_kv_dtype(name: str) -> torch.dtype:
    """Return torch's object for the dtype of a KV cache.

    Raises:
        UnsupportedFeature: the plain-torch reference keeps no keys and values in this type.
    """
    if name not in _KV_DTYPES:
        raise UnsupportedFeature(
            f"The plain-torch reference keeps no KV cache in {name!r}. Use one of {', '.join(_KV_DTYPES)}, "
            "or a backend that declares it."
        )
    return _KV_DTYPES[name]
