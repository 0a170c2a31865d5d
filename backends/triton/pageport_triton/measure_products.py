"""Measure on a device which tiles of quantised products are quickest, and print the entries for the table.

    python -m pageport_triton.measure_products --device cuda --architecture sm90

Candidates are those around the table's own. What it prints goes into ``op_configurations.py``, and the compile check
then says whether it spills.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from pageport_triton.op_configurations import OP_CONFIGURATIONS, OpConfiguration, ProductTiles
from pageport_triton.quantised_linear import quantised_linear
from pageport_triton.quantised_matrix import QuantisedMatrix, quantise

# The rows that stand for each class of the table: all up to the first, all up to the second, …
CLASSES: Mapping[int, int] = {16: 16, 32: 32, 64: 64, 2**31: 1024}
# Milliseconds that a call takes.
Timer = Callable[[Callable[[], None]], float]


def candidates(rows: int) -> Iterator[ProductTiles]:
    """Yield tiles for products with so many rows."""
    for outputs, num_warps, num_stages in product((64, 128), (4, 8), (2, 3, 4)):
        yield ProductTiles(outputs=outputs, rows=min(rows, 128), num_warps=num_warps, num_stages=num_stages)


def quickest(
    matrices: Sequence[QuantisedMatrix],
    rows: int,
    tiles: Sequence[ProductTiles],
    configuration: OpConfiguration,
    timer: Timer,
) -> ProductTiles:
    """Return the tiles with which products of ``rows`` random rows with all ``matrices`` take the least time.

    Tiles that the device has no room for are passed over.

    Raises:
        RuntimeError: it has room for none.
    """
    device = matrices[0].integers.device
    x = torch.randn(rows, matrices[0].in_features, device=device).to(torch.bfloat16)
    outs = [x.new_empty(rows, matrix.out_features) for matrix in matrices]
    times: dict[ProductTiles, float] = {}
    for tile in tiles:
        chosen = replace(configuration, products={2**31: tile})

        def run(chosen: OpConfiguration = chosen) -> None:
            for matrix, out in zip(matrices, outs, strict=True):
                quantised_linear(matrix, x, None, out, chosen)

        try:
            times[tile] = timer(run)
        except Exception as error:
            # Triton's error is only there once a driver is.
            if type(error).__name__ != "OutOfResources":
                raise
    if not times:
        raise RuntimeError(f"None of {len(tiles)} tiles fits this device; give smaller ones.")
    return min(times, key=lambda tile: times[tile])


def random_matrices(out_features: int, in_features: int, device: torch.device) -> list[QuantisedMatrix]:
    """Return a matrix of 8 bits and one of 4."""
    weight = torch.randn(out_features, in_features, device=device)
    return [quantise(bits, [weight], out_features, in_features, device) for bits in (8, 4)]


def device_milliseconds(run: Callable[[], None]) -> float:
    """Return what a call takes on the device, the caches being cold."""
    import triton.testing

    timing: Any = triton.testing.do_bench(run)
    return float(timing)


def main(arguments: list[str] | None = None, timer: Timer = device_milliseconds) -> None:
    parser = argparse.ArgumentParser(prog="python -m pageport_triton.measure_products", description=__doc__)
    parser.add_argument("--device", default="cuda", help="a torch device with a Triton driver")
    parser.add_argument("--architecture", required=True, choices=sorted(OP_CONFIGURATIONS), help="the table's entry")
    parser.add_argument("--features", type=int, default=4096, help="inputs and outputs of the matrices")
    options = parser.parse_args(arguments)
    matrices = random_matrices(options.features, options.features, torch.device(options.device))
    configuration = OP_CONFIGURATIONS[options.architecture]
    for limit, rows in CLASSES.items():
        tiles = list(dict.fromkeys([configuration.product_tiles(rows), *candidates(rows)]))
        print(f"{limit}: {quickest(matrices, rows, tiles, configuration, timer)},", flush=True)


if __name__ == "__main__":
    main()
