"""Names of floating-point types, as capabilities and configurations spell them, and torch's objects."""

import torch

from pageport.errors import UnsupportedFeature

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
