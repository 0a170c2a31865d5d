"""``paged_decode``: attention of one query a request over keys and values that lie anywhere in the cache."""

# NKI is in the vendor's index only, and its kernels are no typed Python.
# mypy: disable-error-code="import-not-found, no-untyped-def, no-untyped-call, untyped-decorator"
# pyright: reportMissingImports=false

import nki
import nki.isa as nisa
import nki.language as nl

# Keys at a time: partitions of the on-chip memory, on which the tensor engine contracts.
TILE = 128


@nki.jit
def paged_decode(query, keys, values, rows, mask):
    """Attend; scores and sums are float32.

    Args:
        query: [requests, kv_heads, size, group], scaled; ``group`` query heads share a KV head.
        keys, values: [rows of the cache, size]; no row that ``rows`` names holds NaN where it is masked.
        rows: int32 [requests, kv_heads, num_keys, 1], ``num_keys`` a multiple of ``TILE``.
        mask: float32 [requests, group, num_keys], added to scores.

    Returns:
        [requests, kv_heads, group, size] in float32.
    """
    requests, kv_heads, size, group = query.shape
    value_size = values.shape[1]
    num_keys = rows.shape[2]
    out = nl.ndarray((requests, kv_heads, group, value_size), dtype=nl.float32, buffer=nl.shared_hbm)
    for request in nl.affine_range(requests):
        for head in nl.affine_range(kv_heads):
            stationary = nl.ndarray((size, group), dtype=query.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=stationary, src=query[request, head])
            scores = nl.ndarray((group, num_keys), dtype=nl.float32, buffer=nl.sbuf)
            added = nl.ndarray((group, num_keys), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=added, src=mask[request])
            for start in range(0, num_keys, TILE):
                tile = nl.ndarray((TILE, size), dtype=keys.dtype, buffer=nl.sbuf)
                _gather(tile, keys, rows, request, head, start)
                transposed_psum = nl.ndarray((size, TILE), dtype=keys.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=transposed_psum, data=tile)
                transposed = nl.ndarray((size, TILE), dtype=keys.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=transposed, src=transposed_psum)
                products = nl.ndarray((group, TILE), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=products, stationary=stationary, moving=transposed)
                nisa.tensor_tensor(
                    dst=scores[:, start : start + TILE],
                    data1=products,
                    data2=added[:, start : start + TILE],
                    op=nl.add,
                )
            largest = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=largest, op=nl.maximum, data=scores, axis=1, negate=True)
            weights = nl.ndarray((group, num_keys), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=weights, op=nl.exp, data=scores, bias=largest)
            total = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=total, op=nl.add, data=weights, axis=1)
            attended = nl.ndarray((group, value_size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=attended, value=0.0)
            for start in range(0, num_keys, TILE):
                tile = nl.ndarray((TILE, value_size), dtype=values.dtype, buffer=nl.sbuf)
                _gather(tile, values, rows, request, head, start)
                weights_psum = nl.ndarray((TILE, group), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_transpose(dst=weights_psum, data=weights[:, start : start + TILE])
                moving = nl.ndarray((TILE, group), dtype=values.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=moving, src=weights_psum)
                part = nl.ndarray((group, value_size), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=part, stationary=moving, moving=tile)
                nisa.tensor_tensor(dst=attended, data1=attended, data2=part, op=nl.add)
            inverse = nl.ndarray((group, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inverse, data=total)
            nisa.tensor_scalar(dst=attended, data=attended, op0=nl.multiply, operand0=inverse)
            nisa.dma_copy(dst=out[request, head], src=attended)
    return out


def _gather(tile, matrix, rows, request, head, start):
    """Copy the rows of ``TILE`` keys, which a list of dynamic indices names."""
    size = matrix.shape[1]
    indexes = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=indexes, src=rows[request, head, start : start + TILE])
    found = matrix.ap(pattern=[[size, TILE], [1, size]], offset=0, vector_offset=indexes, indirect_dim=0)
    nisa.dma_copy(dst=tile, src=found)
