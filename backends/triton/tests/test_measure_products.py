"""Measuring tiles of products, with a clock that says what it is told and kernels that are interpreted."""

from collections.abc import Callable

import pytest
import torch

from pageport_triton import measure_products
from pageport_triton.measure_products import main, quickest, random_matrices
from pageport_triton.op_configurations import ProductTiles

from .small_ops import SMALL

TILES = [ProductTiles(outputs=outputs, rows=16, num_warps=1, num_stages=1) for outputs in (16, 32, 64)]
HOST = torch.device("cpu")


class OutOfResources(Exception):
    """What triton raises where shared memory is too small."""


def test_the_tiles_with_the_least_time_are_chosen() -> None:
    times = iter([3.0, 1.0, 2.0])

    def timer(run: Callable[[], None]) -> float:
        run()
        return next(times)

    assert quickest(random_matrices(8, 32, HOST), 2, TILES, SMALL, timer) == TILES[1]


def test_tiles_without_room_are_passed_over() -> None:
    outcomes = iter([OutOfResources(), 5.0, 4.0, OutOfResources()])

    def timer(run: Callable[[], None]) -> float:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    matrices = random_matrices(8, 32, HOST)
    assert quickest(matrices, 2, TILES, SMALL, timer) == TILES[2]
    with pytest.raises(RuntimeError, match="None of 1 tiles"):
        quickest(matrices, 2, TILES[:1], SMALL, timer)


def test_an_entry_is_printed_for_each_class_of_rows(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--device", "cpu", "--architecture", "sm90", "--features", "32"], timer=lambda run: 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split(":")[0]) for line in lines] == list(measure_products.CLASSES)
    assert lines[0].startswith("16: ProductTiles(outputs=64, rows=16, ")
