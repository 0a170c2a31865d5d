"""Run an attention case on a device and say what is wrong with its answer."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pageport.testing.conformance.attention_case import AttentionCase
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.oracle import attend
from pageport.testing.conformance.scene import OUTPUT, POISONS, RowResult, Scene, Step
from pageport.testing.conformance.suspects import find_suspect


def check_case(context: Context, case: AttentionCase) -> None:
    """Write each request's history, then write and attend the case's step, and compare with the oracle.

    Raises:
        AssertionError: says what the first wrong row comes from.
    """
    for part in _steps_of(case, context.capabilities.mixed_batches):
        with Scene(context.device, part, context.numpy_generator()) as scene:
            scene.write_history()
            step = scene.step(part.rows, part.num_decodes)
            check_step(context, scene, step)


def check_step(context: Context, scene: Scene, step: Step) -> None:
    """Compare one step's output with the oracle.

    Raises:
        AssertionError: says what the first wrong row comes from.
    """
    case = scene.case
    assert step.guard_is_untouched, "attention writes behind the end of `out`."
    for index, result in enumerate(step.rows):
        where = _described(case, step, index)
        if np.isnan(result.actual).any():
            raise AssertionError(f"{where}: {_about_nan(context, case, result)}")
        if result.request is None:
            assert np.isfinite(result.actual).all(), f"{where}: the output is not finite."
            continue
        expected = attend(result.request, scene.formula)
        difference = np.abs(result.actual - expected)
        wrong = difference > case.tolerance * (1 + np.abs(expected))
        if wrong.any():
            suspect = find_suspect(result.request, scene.formula, case.block_size, result.actual, case.tolerance)
            cause = suspect or _unexplained(result)
            query, head, feature = (int(index[0]) for index in np.nonzero(wrong))
            raise AssertionError(
                f"{where}: {cause}{'' if cause.endswith('?') else '.'} "
                f"{int(wrong.sum())} of {wrong.size} values are wrong, by up to {difference.max():.2g}; first "
                f"out[{result.first_token + query}, {head}, {feature}] = {result.actual[query, head, feature]:.6g}, "
                f"expected {expected[query, head, feature]:.6g} ± {case.tolerance:g}."
            )


def _steps_of(case: AttentionCase, mixed_batches: bool) -> Iterator[AttentionCase]:
    """Split decodes from prefills where one step cannot hold both."""
    decodes, prefills = case.rows[: case.num_decodes], case.rows[case.num_decodes :]
    if mixed_batches or not decodes or not prefills:
        yield case
        return
    yield replace(case, rows=decodes)
    yield replace(case, rows=prefills)


def _described(case: AttentionCase, step: Step, index: int) -> str:
    row, request = step.rows[index].row, step.rows[index].request
    if request is None:
        return f"padding row {index} of {len(step.rows)} (seq_lens 0, slot -1)"
    return (
        f"{'decode' if index < step.num_decodes else 'prefill'} row {index} of {len(step.rows)} (length "
        f"{request.length}, {row.queries} {'query' if row.queries == 1 else 'queries'}, block size {case.block_size}, "
        f"{case.num_heads} heads over {case.num_kv_heads} KV heads of {case.head_size}, {case.compute_dtype} over "
        f"{case.kv_dtype})"
    )


def _unexplained(result: RowResult) -> str:
    if result.num_freed_blocks:
        return f"wrong values: are the first {result.num_freed_blocks} table entries, which are -1, followed?"
    return "wrong values, from no fault that this suite knows"


def _about_nan(context: Context, case: AttentionCase, result: RowResult) -> str:
    """Run again with one kind of poison at a time, to tell where the NaN comes from."""
    place = f"out[{result.first_token + int(np.argwhere(np.isnan(result.actual))[0, 0])}]"
    if _yields_nan(context, case, ()):
        entry = ", or is a table entry of -1 followed?" if case.kind == "sliding" else "?"
        return f"{place} is NaN, though nothing it may read is: does a query see nothing in some block (0 / 0){entry}"
    for poison in POISONS:
        if _yields_nan(context, case, (poison,)):
            advice = (
                "" if poison == OUTPUT else ": it may hold NaN, and 0 * NaN is NaN, so mask values as well as scores"
            )
            return f"{place} is NaN because {poison}{advice}."
    return f"{place} is NaN in this step of several, from memory that may hold NaN."


def _yields_nan(context: Context, case: AttentionCase, poisons: tuple[str, ...]) -> bool:
    for part in _steps_of(case, context.capabilities.mixed_batches):
        with Scene(context.device, part, context.numpy_generator(), poisons) as scene:
            scene.write_history()
            step = scene.step(part.rows, part.num_decodes)
        if any(np.isnan(row.actual).any() for row in step.rows):
            return True
    return False
