"""Norms, rotary embedding, activations and row operations, computed in float32 and rounded once at the end."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional


def rms_norm(
    x: Float[Tensor, "... features"],
    weight: Float[Tensor, "features"],
    epsilon: float,
    out: Float[Tensor, "... features"] | None = None,
) -> Float[Tensor, "... features"]:
    """Return ``x / sqrt(mean(x²) + epsilon) * weight`` (arXiv:1910.07467); ``out`` may be ``x``."""
    normalised = functional.rms_norm(x.float(), (x.shape[-1],), None, epsilon)
    return torch.mul(normalised, weight, out=_target(out, x))


def add_rms_norm(
    x: Float[Tensor, "tokens features"],
    residual: Float[Tensor, "tokens features"],
    weight: Float[Tensor, "features"],
    epsilon: float,
    out: Float[Tensor, "tokens features"] | None = None,
) -> Float[Tensor, "tokens features"]:
    """Add ``x`` to ``residual`` in place and return the RMS norm of the sum; ``out`` may be ``x``."""
    residual.add_(x)
    return rms_norm(residual, weight, epsilon, out)


def layer_norm(
    x: Float[Tensor, "tokens features"],
    weight: Float[Tensor, "features"],
    bias: Float[Tensor, "features"] | None,
    epsilon: float,
    out: Float[Tensor, "tokens features"] | None = None,
) -> Float[Tensor, "tokens features"]:
    """Return the layer norm (arXiv:1607.06450); ``out`` may be ``x``."""
    result = functional.layer_norm(
        x.float(), (x.shape[-1],), weight.float(), None if bias is None else bias.float(), epsilon
    )
    return result.to(x.dtype) if out is None else out.copy_(result)


def add(
    x: Float[Tensor, "tokens features"],
    y: Float[Tensor, "tokens features"],
    out: Float[Tensor, "tokens features"] | None = None,
) -> Float[Tensor, "tokens features"]:
    """Return ``x + y``; ``out`` may be ``x``."""
    return torch.add(x, y, out=out)


def scale(
    x: Float[Tensor, "tokens features"], factor: float, out: Float[Tensor, "tokens features"] | None = None
) -> Float[Tensor, "tokens features"]:
    """Return ``x * factor``; ``out`` may be ``x``."""
    return torch.mul(x, factor, out=out)


def rope(
    query: Float[Tensor, "tokens heads head_size"],
    key: Float[Tensor, "tokens kv_heads head_size"],
    positions: Int64[Tensor, "tokens"],
    cos_sin: Float[Tensor, "positions rotary_size"],
    interleaved: bool,
) -> None:
    """Rotate the first ``rotary_size`` features in place (arXiv:2104.09864); views with any strides will do."""
    half = cos_sin.shape[-1] // 2
    angles = cos_sin.index_select(0, positions).unsqueeze(1)
    cosines, sines = angles[..., :half], angles[..., half:]
    # The partners of a pair lie along this axis of the unflattened features.
    pair = -1 if interleaved else -2
    cosines = cosines.unsqueeze(pair)
    sines = torch.stack((-sines, sines), dim=pair)
    shape = (half, 2) if interleaved else (2, half)
    for heads in (query, key):
        pairs = heads[..., : 2 * half].view(*heads.shape[:-1], *shape)
        x = pairs.float()
        pairs.copy_((x * cosines).addcmul_(x.flip(pair), sines))


def silu_mul(
    gate_up: Float[Tensor, "tokens twice_features"], out: Float[Tensor, "tokens features"] | None = None
) -> Float[Tensor, "tokens features"]:
    """Return ``silu(gate) * up``, gate being the first half of the columns."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.mul(functional.silu(gate.float()), up, out=_target(out, up))


def gelu_mul(
    gate_up: Float[Tensor, "tokens twice_features"],
    tanh: bool,
    out: Float[Tensor, "tokens features"] | None = None,
) -> Float[Tensor, "tokens features"]:
    """Return ``gelu(gate) * up``; ``tanh`` picks the tanh approximation (arXiv:1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    activated = functional.gelu(gate.float(), approximate="tanh" if tanh else "none")
    return torch.mul(activated, up, out=_target(out, up))


def gelu(
    x: Float[Tensor, "tokens features"],
    tanh: bool,
    out: Float[Tensor, "tokens features"] | None = None,
) -> Float[Tensor, "tokens features"]:
    """Return ``gelu(x)``; ``out`` may be ``x``."""
    result = functional.gelu(x.float(), approximate="tanh" if tanh else "none")
    return result.to(x.dtype) if out is None else out.copy_(result)


def softcap(
    x: Float[Tensor, "tokens features"], cap: float, out: Float[Tensor, "tokens features"] | None = None
) -> Float[Tensor, "tokens features"]:
    """Return ``cap * tanh(x / cap)``; ``out`` may be ``x``."""
    return torch.mul((x.float() / cap).tanh_(), cap, out=_target(out, x))


def gather_rows(
    x: Float[Tensor, "tokens features"],
    rows: Int64[Tensor, "rows"],
    out: Float[Tensor, "rows features"] | None = None,
) -> Float[Tensor, "rows features"]:
    """Return ``x[rows]``."""
    return torch.index_select(x, 0, rows, out=out)


def _target(out: Tensor | None, like: Tensor) -> Tensor:
    """Return ``out``, or a new tensor of the dtype the result is rounded to."""
    return torch.empty_like(like, memory_format=torch.contiguous_format) if out is None else out
