"""Call an op on a device among guarded memory and say what is wrong with its result."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pageport.testing.conformance.op_formulas import Formula, Inputs

# How far a result may be off, relatively. For sums also absolutely, their terms being about 1.
TOLERANCES = {
    # A few roundings, and device exponentials that are good to some 1e-6.
    torch.float32: 1e-5,
    # Two roundings to 11 bits (an activation, then its product), twice that to be fair.
    torch.float16: 2e-3,
    # The same to 8 bits.
    torch.bfloat16: 1.6e-2,
}
# Absolutely, where terms cancel almost to nothing: float32 arithmetic on values of about 10.
NEXT_TO_NOTHING = 1e-5
GUARD = 64
GUARD_VALUE = 7.25


class Guarded(NamedTuple):
    """A tensor with memory before and behind it that nothing should touch."""

    tensor: Tensor
    buffer: Tensor

    @classmethod
    def copy_of(cls, values: Tensor, where: torch.device) -> "Guarded":
        buffer = torch.full((values.numel() + 2 * GUARD,), GUARD_VALUE, device=where).to(values.dtype)
        tensor = buffer[GUARD : GUARD + values.numel()].view(values.shape)
        tensor.copy_(values)
        return cls(tensor, buffer)

    def is_untouched(self) -> bool:
        value = torch.tensor(GUARD_VALUE).to(self.buffer.dtype)
        return bool((torch.cat((self.buffer[:GUARD], self.buffer[-GUARD:])).cpu() == value).all())


def check_op(
    what: str,
    call: Callable[[Inputs, Tensor | None], Tensor],
    inputs: Inputs,
    formula: Formula,
    *,
    where: torch.device,
    dtype: torch.dtype,
    out_mode: str,
    updates: Mapping[str, Formula] | None = None,
    is_sum: bool = False,
    suspects: Mapping[str, Formula] | None = None,
) -> None:
    """Call the op once and compare its result and what it did to memory.

    Args:
        call: from inputs on the device and ``out`` to the result.
        dtype: of the result.
        out_mode: "new" (no ``out``), "out" (filled with NaN), or the name of the input that is ``out``.
        updates: inputs that the op changes, and to what.

    Raises:
        AssertionError: says what is wrong.
    """
    updates = updates or {}
    wide = {name: value.double() for name, value in inputs.items()}
    expected = formula(wide)
    given = {name: Guarded.copy_of(value, where) for name, value in inputs.items()}
    out = None
    if out_mode == "out":
        out = Guarded.copy_of(torch.full(expected.shape, torch.nan, dtype=dtype), where)
    elif out_mode != "new":
        out = given[out_mode]
    result = call({name: value.tensor for name, value in given.items()}, None if out is None else out.tensor)
    if out is not None:
        assert result.data_ptr() == out.tensor.data_ptr(), f"{what}: the result is not `out`, though one was given."
    elif expected.numel():
        shared = [name for name, value in given.items() if value.tensor.data_ptr() == result.data_ptr()]
        assert not shared, f"{what}: without `out` the result shares memory with {shared[0]}."
    check_values(what, result, expected, dtype, is_sum, {name: f(wide) for name, f in (suspects or {}).items()})
    for name, value in given.items():
        if name in updates:
            check_values(f"{what}, {name} afterwards", value.tensor, updates[name](wide), dtype, is_sum)
        elif value is not out:
            assert torch.equal(value.tensor.cpu(), inputs[name]), f"{what}: the op changes its input {name}."
    for name, guarded in (given | ({} if out is None else {"out": out})).items():
        assert guarded.is_untouched(), f"{what}: the op writes outside {name}."


def check_values(
    what: str,
    actual: Tensor,
    expected: Tensor,
    dtype: torch.dtype,
    is_sum: bool = False,
    suspects: Mapping[str, Tensor] | None = None,
) -> None:
    """Compare dtype, shape, NaN and values, in this order.

    Args:
        suspects: what the result would be with a likely fault.

    Raises:
        AssertionError: names the first wrong value, and the fault that explains it.
    """
    assert actual.dtype == dtype, f"{what}: the result is {actual.dtype}, not {dtype}."
    assert actual.shape == expected.shape, f"{what}: the result is {list(actual.shape)}, not {list(expected.shape)}."
    found = actual.double().cpu()
    tolerance = TOLERANCES[dtype]
    allowed = (tolerance if is_sum else NEXT_TO_NOTHING) + tolerance * expected.abs()
    # Not "wrong where greater": NaN is not greater.
    wrong = ~((found - expected).abs() <= allowed)
    if not wrong.any():
        return
    place = tuple(wrong.nonzero()[0].tolist())
    values = f"at {list(place)} {found[place].item():.6g}, expected {expected[place].item():.6g}"
    cause = ""
    for name, suspect in (suspects or {}).items():
        if torch.allclose(found, suspect, rtol=4 * tolerance, atol=4 * float(allowed.min()), equal_nan=True):
            cause = f" {name}:"
            break
    nans = f", {int(found.isnan().sum())} of them NaN" if found.isnan().any() else ""
    raise AssertionError(
        f"{what}:{cause} {values}; {int(wrong.sum())} of {wrong.numel()} values are wrong{nans} "
        f"(allowed: {float(allowed[place]):.2g})."
    )
