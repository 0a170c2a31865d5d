"""Products with quantised matrices, and lookups of their rows."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pageport_triton.compile_case import CompileCase
from pageport_triton.launch import launch
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration, ProductTiles
from pageport_triton.pairwise import pairwise
from pageport_triton.quantised_linear_kernel import add_splits_kernel, quantised_linear_kernel, quantised_rows_kernel
from pageport_triton.quantised_matrix import QuantisedMatrix
from pageport_triton.rows import LONGEST_BLOCK, block_tiles, num_tiles, row_stride
from pageport_triton.signature import named_case

# Forms of a matrix, each a specialisation of the kernels.
_FORMS = ("q4_1", "q4_0", "q8_0", "int8")
# A share of the inputs is at least so many steps.
_LEAST_STEPS = 4


def quantised_linear(
    matrix: QuantisedMatrix, x: Tensor, bias: Tensor | None, out: Tensor, configuration: OpConfiguration
) -> None:
    """Write ``x · Wᵀ + bias`` to ``out``; rows of both may be strided."""
    num_rows = len(x)
    if not num_rows or not matrix.out_features:
        return
    tiles = configuration.product_tiles(num_rows)
    programs = num_tiles(matrix.out_features, tiles.outputs), num_tiles(num_rows, tiles.rows)
    splits = _num_splits(matrix.num_steps, programs[0] * programs[1], configuration)
    split_steps = num_tiles(matrix.num_steps, splits)
    splits = num_tiles(matrix.num_steps, split_steps)
    parts = out
    if splits > 1:
        parts = torch.empty(splits, num_rows, matrix.out_features, dtype=torch.float32, device=x.device)
    launch(
        quantised_linear_kernel,
        (*programs, splits),
        matrix.integers,
        *_scales(matrix),
        matrix.minima,
        x,
        bias if splits == 1 else None,
        parts,
        num_rows,
        matrix.in_features,
        matrix.out_features,
        matrix.num_steps,
        split_steps,
        row_stride(x),
        parts.stride(-2),
        parts.stride(0) if splits > 1 else 0,
        BITS=matrix.bits,
        IS_INTERPRETED=configuration.is_interpreted,
        OUTPUTS=tiles.outputs,
        ROWS=tiles.rows,
        **_product_options(tiles, configuration),
    )
    if splits > 1:
        sums = block_tiles(matrix.out_features, configuration)
        launch(
            add_splits_kernel,
            sums.grid(num_rows, matrix.out_features),
            parts,
            bias,
            out,
            num_rows,
            matrix.out_features,
            splits,
            row_stride(out),
            IS_INTERPRETED=configuration.is_interpreted,
            **sums.constants,
            **sums.options,
        )


def quantised_rows(matrix: QuantisedMatrix, token_ids: Tensor, out: Tensor, configuration: OpConfiguration) -> None:
    """Write the dequantised rows ``token_ids`` to ``out``, whose rows may be strided."""
    if not out.numel():
        return
    tiles = block_tiles(matrix.in_features, configuration)
    launch(
        quantised_rows_kernel,
        tiles.grid(len(token_ids), matrix.in_features),
        matrix.integers,
        *_scales(matrix),
        matrix.minima,
        token_ids.contiguous(),
        out,
        len(token_ids),
        matrix.in_features,
        matrix.out_features,
        row_stride(out),
        BITS=matrix.bits,
        IS_INTERPRETED=configuration.is_interpreted,
        **tiles.constants,
        **tiles.options,
    )


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield every form of a matrix, for each dtype of activations and each size of tiles; and sums and lookups."""
    configuration = OP_CONFIGURATIONS[architecture]
    tiles = list(dict.fromkeys(configuration.products.values()))
    ends = {"whole": (True, None), "with bias": (True, True), "split": (False, None)}
    for choice in pairwise({"form": _FORMS, "dtype": ["bf16", "fp16"], "tiles": tiles, "end": list(ends)}):
        tile, dtype = choice["tiles"], choice["dtype"]
        is_whole, has_bias = ends[choice["end"]]
        types = {"x": dtype, "out": dtype if is_whole else "fp32", "bias": dtype if has_bias else None}
        yield named_case(
            quantised_linear_kernel,
            _pointers(choice["form"]) | types,
            {"BITS": _bits(choice["form"]), "OUTPUTS": tile.outputs, "ROWS": tile.rows},
            _product_options(tile, configuration),
            f"{choice['form']} {dtype} {tile.outputs} by {tile.rows}, {choice['end']}",
            aligned=("features",),
            has_matrix_product=True,
        )
    row_tiles = block_tiles(LONGEST_BLOCK, configuration)
    for dtype in ("bf16", "fp16", "fp32"):
        for form in _FORMS:
            pointers = _pointers(form) | {"token_ids": "i64", "out": dtype}
            constants = {"BITS": _bits(form), **row_tiles.constants}
            yield named_case(
                quantised_rows_kernel, pointers, constants, row_tiles.options, f"{form} {dtype}", aligned=("features",)
            )
        pointers = {"parts": "fp32", "bias": dtype, "out": dtype}
        yield named_case(
            add_splits_kernel, pointers, row_tiles.constants, row_tiles.options, dtype, aligned=("features",)
        )


def _pointers(form: str) -> dict[str, str | None]:
    """Return what a matrix of a form consists of, as a kernel's parameters."""
    has_groups = form != "int8"
    return {
        "integers": "i8" if _bits(form) == 8 else "u8",
        "group_scales": "fp16" if has_groups else None,
        "output_scales": None if has_groups else "fp32",
        "minima": "fp16" if form == "q4_1" else None,
    }


def _bits(form: str) -> int:
    return 4 if form.startswith("q4") else 8


def _scales(matrix: QuantisedMatrix) -> tuple[Tensor | None, Tensor | None]:
    """Return scales by group, or else by output."""
    return (matrix.scales, None) if matrix.scales.dim() == 2 else (None, matrix.scales)


def _num_splits(num_steps: int, programs: int, configuration: OpConfiguration) -> int:
    """Return among how many programs the inputs are divided, from sizes alone."""
    wanted = configuration.wanted_programs // programs
    return max(1, min(wanted, configuration.most_splits, num_steps // _LEAST_STEPS))


def _product_options(tiles: ProductTiles, configuration: OpConfiguration) -> dict[str, int]:
    return {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages, **configuration.options}
