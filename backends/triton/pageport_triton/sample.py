"""Choosing tokens: the ones that the reference chooses, row by row."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.reference.choose import choose_tokens
from pageport_triton import sample_kernel as kernels
from pageport_triton.compile_case import CompileCase
from pageport_triton.launch import launch
from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration, SampleTiles
from pageport_triton.rows import next_power, num_tiles, row_stride
from pageport_triton.signature import named_case

# The reference's probabilities are float32, each good to this, and so are the kernel's.
PROBABILITY_MARGIN = 2.0**-20
# What the reference's sum over the vocabulary, eight lanes side by side, may be off by, for each token.
SUM_MARGIN = 2.0**-24 / 8
# Ids are int32, and so is their sum with a tile.
MAX_VOCAB_SIZE = 2**30
# Tokens that share a block of random bits.
_LANES = 4
# Of what the kernels' pointers are to.
_TYPES = {
    **dict.fromkeys(("peaks", "part_peaks", "scaled", "temperatures", "top_p", "min_p", "log_min_p"), "fp32"),
    **dict.fromkeys(("top_k", "seeds", "positions", "token_ids"), "i64"),
    "part_ids": "i32",
    "part_scores": "fp64",
    "undecided": "i8",
}


def sample(logits: Tensor, batch: ChoiceBatch, *, configuration: OpConfiguration) -> Choice:
    """Choose the tokens that the reference chooses.

    Scores are computed in float64, as the reference does: two that a rounding could swap, nearer than some 1e-12, come
    once in 10¹¹ tokens or so, and are not looked for. Where a rounding could decide whether top_p leaves a token (some
    in ten thousand rows with top_p) the reference is asked. To know, the host waits for the device in steps with
    filters, and only in these.
    """
    rows, vocab = logits.shape
    assert 0 < vocab < MAX_VOCAB_SIZE, f"{vocab} tokens are not supported"
    choice = Choice(
        torch.empty(rows, dtype=torch.int64, device=logits.device),
        torch.empty(rows, dtype=torch.float32, device=logits.device),
    )
    if not rows:
        return choice
    tiles = configuration.sample
    _find_peaks(logits, choice, tiles)
    if not batch.plain_rows.size and not batch.filtered_rows.size:
        return choice
    parameters = _Parameters(batch)
    scaled = _scale(logits, choice, parameters, tiles)
    if batch.plain_rows.size:
        _draw_plain(scaled, choice, parameters, tiles)
    if batch.filtered_rows.size:
        undecided = _draw_filtered(scaled, choice, parameters, tiles)
        open_rows = undecided.nonzero().flatten()  # waits for the device
        if open_rows.numel():
            choice.token_ids[open_rows] = choose_tokens(logits[open_rows], batch.select(open_rows)).token_ids
    return choice


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield every kernel, those that read logits for each dtype these may have."""
    tiles = OP_CONFIGURATIONS[architecture].sample
    tile = {"ROWS": tiles.rows, "TOKENS": tiles.tokens}
    groups = {"ROWS": tiles.rows, "GROUPS": tiles.tokens // _LANES}
    merging = {"ROWS": tiles.rows, "SPLITS": 16}
    cases: list[tuple[object, str, dict[str, int], int]] = [
        (kernels.merge_peaks, "fp32", merging, 1),
        (kernels.merge_draws, "fp32", merging, 1),
        (kernels.draw_plain, "fp32", groups, tiles.num_warps),
        (kernels.draw_filtered, "fp32", {**tile, **groups}, tiles.filter_warps),
    ]
    for dtype in ("fp32", "bf16", "fp16"):
        cases += [(kernel, dtype, tile, tiles.num_warps) for kernel in (kernels.find_peaks, kernels.scale_logits)]
    for kernel, dtype, constants, num_warps in cases:
        yield named_case(
            kernel,
            {**_TYPES, "logits": dtype},
            constants,
            {"num_warps": num_warps},
            f"{dtype} logits",
            floats=("mass_margin",),
            aligned=("split_tokens",),
        )


class _Parameters:
    """The batch's tensors without gaps, in the order in which kernels take them."""

    def __init__(self, batch: ChoiceBatch) -> None:
        self.temperatures = batch.temperatures.contiguous()
        self.filters = tuple(values.contiguous() for values in (batch.top_k, batch.top_p, batch.min_p))
        self.log_min_p = torch.log(batch.min_p).contiguous()
        self.draws = tuple(values.contiguous() for values in (batch.seeds, batch.positions))


def _find_peaks(logits: Tensor, choice: Choice, tiles: SampleTiles) -> None:
    """Write the largest logits and the first tokens that have them."""
    rows, vocab = logits.shape
    splits = num_tiles(vocab, tiles.split_tokens)
    part_peaks = torch.empty(rows, splits, dtype=torch.float32, device=logits.device)
    part_ids = torch.empty(rows, splits, dtype=torch.int32, device=logits.device)
    row_programs = num_tiles(rows, tiles.rows)
    launch(
        kernels.find_peaks,
        (row_programs, splits),
        logits,
        part_peaks,
        part_ids,
        rows,
        vocab,
        row_stride(logits),
        tiles.split_tokens,
        ROWS=tiles.rows,
        TOKENS=tiles.tokens,
        num_warps=tiles.num_warps,
    )
    launch(
        kernels.merge_peaks,
        (row_programs,),
        part_peaks,
        part_ids,
        choice.peaks,
        choice.token_ids,
        rows,
        splits,
        vocab,
        ROWS=tiles.rows,
        SPLITS=next_power(splits),
        num_warps=1,
    )


def _scale(logits: Tensor, choice: Choice, parameters: _Parameters, tiles: SampleTiles) -> Tensor:
    """Return scaled logits [rows, vocab] in float32; rows without temperature hold anything."""
    rows, vocab = logits.shape
    scaled = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)
    launch(
        kernels.scale_logits,
        (num_tiles(rows, tiles.rows), num_tiles(vocab, tiles.tokens)),
        logits,
        choice.peaks,
        parameters.temperatures,
        scaled,
        rows,
        vocab,
        row_stride(logits),
        ROWS=tiles.rows,
        TOKENS=tiles.tokens,
        num_warps=tiles.num_warps,
    )
    return scaled


def _draw_plain(scaled: Tensor, choice: Choice, parameters: _Parameters, tiles: SampleTiles) -> None:
    """Replace the tokens of rows with a temperature and no filter."""
    rows, vocab = scaled.shape
    splits = num_tiles(vocab, tiles.split_tokens)
    part_scores = torch.empty(rows, splits, dtype=torch.float64, device=scaled.device)
    part_ids = torch.empty(rows, splits, dtype=torch.int32, device=scaled.device)
    row_programs = num_tiles(rows, tiles.rows)
    launch(
        kernels.draw_plain,
        (row_programs, splits),
        scaled,
        parameters.temperatures,
        *parameters.filters,
        *parameters.draws,
        part_scores,
        part_ids,
        rows,
        vocab,
        tiles.split_tokens,
        ROWS=tiles.rows,
        GROUPS=tiles.tokens // _LANES,
        num_warps=tiles.num_warps,
    )
    launch(
        kernels.merge_draws,
        (row_programs,),
        part_scores,
        part_ids,
        choice.token_ids,
        rows,
        splits,
        ROWS=tiles.rows,
        SPLITS=next_power(splits),
        num_warps=1,
    )


def _draw_filtered(scaled: Tensor, choice: Choice, parameters: _Parameters, tiles: SampleTiles) -> Tensor:
    """Replace the tokens of rows with a temperature and a filter; return which rows are undecided."""
    rows, vocab = scaled.shape
    undecided = torch.zeros(rows, dtype=torch.int8, device=scaled.device)
    launch(
        kernels.draw_filtered,
        (num_tiles(rows, tiles.rows),),
        scaled,
        parameters.temperatures,
        *parameters.filters,
        parameters.log_min_p,
        *parameters.draws,
        choice.peaks,
        choice.token_ids,
        undecided,
        rows,
        vocab,
        PROBABILITY_MARGIN + SUM_MARGIN * vocab,
        ROWS=tiles.rows,
        TOKENS=tiles.tokens,
        GROUPS=tiles.tokens // _LANES,
        num_warps=tiles.filter_warps,
    )
    return undecided
