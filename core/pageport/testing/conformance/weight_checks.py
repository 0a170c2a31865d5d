"""Checks of what becomes of weights: every scheme, fused parts, shards, tied embeddings, memory, and refusals."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES, StoredTensor
from pageport.errors import CorruptWeights, ModelError, UnsupportedFeature
from pageport.testing.conformance.cache import bucket
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.prepared_weight import (
    IN_FEATURES,
    activations,
    check_product,
    check_rows,
    prepare,
    token_buckets,
    weight_spec,
)
from pageport.testing.conformance.stored_matrix import StoredMatrix, random_matrix, stored_matrix

OUT_FEATURES = 96


def weight_checks(context: Context) -> Iterator[Check]:
    """Yield the checks for the dtypes the device computes in."""
    capabilities = context.capabilities
    for dtype in capabilities.compute_dtypes:
        for scheme in (*PLAIN_SCHEMES, *BLOCK_SCHEMES):
            yield _check(f"linear/{scheme} in {dtype}", partial(check_scheme, scheme=scheme, dtype=dtype))
        yield _check(f"linear/bias and out, {dtype}", partial(check_bias_and_out, dtype=dtype))
        yield _check(f"fused/parts of several schemes, {dtype}", partial(check_fused, dtype=dtype))
        yield _check(f"embed/{dtype}", partial(check_embed, dtype=dtype))
    for scheme in capabilities.weight_schemes:
        yield _check(f"linear/{scheme} dequantised on request", partial(check_dequantised, scheme=scheme))
        yield _check(f"memory/{scheme} is kept as stored", partial(check_kept, scheme=scheme))
    yield _check("linear/one row and many", check_row_counts)
    yield _check("linear/a transposed view of the file", check_transposed)
    yield _check("linear/permuted rows", check_permuted)
    yield _check("shard/rows", check_row_shards)
    yield _check("shard/columns", check_column_shards)
    yield _check("tied embedding", check_tied)
    yield _check("memory/nothing of the file is kept", check_nothing_kept)
    yield _check("refused/parts that do not add up", check_misshapen)
    yield _check("refused/unknown scheme", check_unknown_scheme)
    if "float16" in capabilities.compute_dtypes:
        yield _check("refused/values beyond float16", check_overflow)


def check_scheme(context: Context, scheme: str, dtype: str) -> None:
    """One stored scheme, multiplied in one dtype."""
    generator = context.torch_generator()
    prepared = prepare(context, [random_matrix(scheme, OUT_FEATURES, IN_FEATURES, generator)], dtype)
    check_product(prepared, activations(context, 5, dtype), f"a matrix stored as {scheme}, computed in {dtype}")


def check_bias_and_out(context: Context, dtype: str) -> None:
    """The bias is added, the result is in ``out``, and nothing beside it is touched."""
    generator = context.torch_generator()
    prepared = prepare(context, [random_matrix("f32", OUT_FEATURES, IN_FEATURES, generator)], dtype)
    x = activations(context, 7, dtype)
    bias = torch.randn(OUT_FEATURES, generator=generator).to(x)
    check_product(prepared, x, f"with a bias, in {dtype}", bias=bias)
    buffer = torch.full((len(x) + 2, OUT_FEATURES), torch.nan, dtype=x.dtype, device=x.device)
    for with_bias in ({}, {"bias": bias}):
        buffer.fill_(torch.nan)
        out = buffer[1:-1]
        check_product(prepared, x, f"with out=, in {dtype}", **with_bias, out=out)
        assert out.isfinite().all(), "linear(out=...) returns the product but leaves out unwritten."
        assert buffer[[0, -1]].isnan().all(), "linear(out=...) wrote to the rows before or after out."


def check_fused(context: Context, dtype: str) -> None:
    """Parts of different schemes are one matrix, one under the other."""
    generator = context.torch_generator()
    kept = [scheme for scheme in context.capabilities.weight_schemes if scheme not in PLAIN_SCHEMES]
    schemes = dict.fromkeys([*kept[:2], "q5_0", "q8_0", "f16"])
    parts = [
        random_matrix(scheme, 32 * (number + 1), IN_FEATURES, generator, name=f"part {number}")
        for number, scheme in enumerate(schemes)
    ]
    for chosen in (parts, parts[::-1], [parts[0], parts[0]]):
        names = ", ".join(part.stored.scheme for part in chosen)
        check_product(prepare(context, chosen, dtype), activations(context, 3, dtype), f"fused parts ({names})")


def check_embed(context: Context, dtype: str) -> None:
    """Rows are looked up exactly as far as the dtype goes, also twice and in any order."""
    generator = context.torch_generator()
    for scheme in dict.fromkeys(["bf16", *context.capabilities.weight_schemes, "q8_0", "q6_k"]):
        prepared = prepare(context, [random_matrix(scheme, OUT_FEATURES, IN_FEATURES, generator)], dtype)
        count = bucket(6, token_buckets(context))
        ids = torch.randint(0, OUT_FEATURES, (count,), generator=generator)
        ids[:3] = torch.tensor([OUT_FEATURES - 1, 0, OUT_FEATURES - 1])
        device_ids = ids.to(prepared.device.torch_device)
        out = torch.full((count, IN_FEATURES), torch.nan, dtype=getattr(torch, dtype), device=device_ids.device)
        for arguments in ({}, {"out": out}):
            rows = prepared.device.embed(prepared.weight, device_ids, **arguments)
            prepared.device.synchronize()
            check_rows(rows, prepared.values[ids], dtype, f"embed of a matrix stored as {scheme}")
        check_rows(out, prepared.values[ids], dtype, f"out of embed of a matrix stored as {scheme}")


def check_dequantised(context: Context, scheme: str) -> None:
    """``dequantise=True`` means the arithmetic of the compute dtype, activations included."""
    for dtype in context.capabilities.compute_dtypes:
        matrix = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, context.torch_generator())
        prepared = prepare(context, [matrix], dtype, dequantise=True)
        check_product(prepared, activations(context, 5, dtype), f"{scheme} with dequantise=True, in {dtype}")


def check_kept(context: Context, scheme: str) -> None:
    """A scheme declared as kept takes about the bytes of the file."""
    matrix = random_matrix(scheme, 8 * OUT_FEATURES, IN_FEATURES, context.torch_generator())
    stored_bytes = sum(tensor.nbytes for tensor in matrix.stored.read().values())
    prepared = prepare(context, [matrix], context.capabilities.compute_dtypes[0])
    taken = prepared.device.weight_bytes(prepared.weight)
    # A quarter more leaves room for padding and for scales in float32.
    assert 0.9 * stored_bytes <= taken <= 1.25 * stored_bytes + 4096, (
        f"weight_schemes declares that {scheme} is kept as stored; {stored_bytes} bytes became {taken}."
    )


def check_row_counts(context: Context) -> None:
    """Steps of one token, and of more than any tile, are the same matrix."""
    dtype = context.capabilities.preferred_dtype
    for scheme in dict.fromkeys(["f32", *context.capabilities.weight_schemes]):
        matrix = random_matrix(scheme, OUT_FEATURES + 1, IN_FEATURES, context.torch_generator())
        prepared = prepare(context, [matrix], dtype)
        for count in (1, 2, 17, 33, 130):
            check_product(prepared, activations(context, count, dtype), f"{count} rows times {scheme}")


def check_transposed(context: Context) -> None:
    """Some checkpoints store the transpose: what is read is then a view with swapped strides."""
    dense = torch.randn(IN_FEATURES, OUT_FEATURES, generator=context.torch_generator())
    dtype = context.capabilities.compute_dtypes[0]
    check_product(
        prepare(context, [stored_matrix(dense.T)], dtype), activations(context, 3, dtype), "a transposed view"
    )


def check_permuted(context: Context) -> None:
    """Rows come in the model's order, taken from the file's with any permutation, quantised ones too."""
    generator = context.torch_generator()
    dtype = context.capabilities.compute_dtypes[0]
    for scheme in dict.fromkeys(["bf16", *context.capabilities.weight_schemes, "q4_0"]):
        matrix = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, generator)
        order = torch.randperm(OUT_FEATURES, generator=generator)
        (key, stored), *_ = matrix.stored.read().items()
        permuted = StoredTensor(
            scheme=scheme,
            shape=matrix.stored.shape,
            read=partial(_one_tensor, key, stored[order]),
            source=matrix.stored.source,
        )
        prepared = prepare(context, [StoredMatrix(permuted, matrix.values[order])], dtype)
        check_product(prepared, activations(context, 3, dtype), f"permuted rows stored as {scheme}")


def check_row_shards(context: Context) -> None:
    """A rank's rows are its share of every part, so that fused projections stay fused."""
    generator = context.torch_generator()
    dtype = context.capabilities.compute_dtypes[0]
    for scheme in dict.fromkeys(["f32", *context.capabilities.weight_schemes, "q8_0"]):
        parts = [random_matrix(scheme, rows, IN_FEATURES, generator) for rows in (64, 32, 32)]
        for rank in range(4):
            shares = [part.values.chunk(4)[rank] for part in parts]
            prepared = prepare(
                context, parts, dtype, torch.cat(shares), shard_rank=rank, shard_world_size=4, shard_axis=0
            )
            check_product(
                prepared,
                activations(context, 3, dtype),
                f"rows of rank {rank} of 4 of parts with 64, 32 and 32 rows stored as {scheme}",
            )


def check_column_shards(context: Context) -> None:
    """A rank's columns are a contiguous share, whole blocks of a quantised scheme."""
    generator = context.torch_generator()
    dtype = context.capabilities.compute_dtypes[0]
    for scheme in dict.fromkeys(["f32", *context.capabilities.weight_schemes, "q8_0"]):
        matrix = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, generator)
        for rank in range(2):
            values = matrix.values.chunk(2, dim=1)[rank]
            prepared = prepare(context, [matrix], dtype, values, shard_rank=rank, shard_world_size=2, shard_axis=1)
            check_product(
                prepared, activations(context, 3, dtype, IN_FEATURES // 2), f"columns of rank {rank} of 2, {scheme}"
            )


def check_tied(context: Context) -> None:
    """One handle serves ``embed`` and ``linear``, and takes the memory of one matrix."""
    generator = context.torch_generator()
    device, dtype = context.device, context.capabilities.compute_dtypes[0]
    _warm_up(context, dtype)
    rows = 2**14
    matrix = stored_matrix(torch.randn(rows, IN_FEATURES, generator=generator))
    expected_bytes = rows * IN_FEATURES * getattr(torch, dtype).itemsize
    x = activations(context, 1, dtype)
    ids = torch.tensor([rows - 1] * bucket(1, token_buckets(context)), device=device.torch_device)
    before = device.memory().reserved_by_this_process
    prepared = prepare(context, [matrix], dtype, matrix.values)
    embedded = device.embed(prepared.weight, ids)
    prepared.linear(x)
    device.synchronize()
    grown = device.memory().reserved_by_this_process - before
    check_rows(embedded[:1], matrix.values[rows - 1 :], dtype, "embed through the handle that linear uses")
    counted = device.weight_bytes(prepared.weight)
    # Half a matrix more leaves room for buffers of the conversion.
    limit = 1.5 * expected_bytes
    assert 0.5 * expected_bytes <= counted <= limit, (
        f"a tied embedding of {rows} x {IN_FEATURES} in {dtype} is {expected_bytes} bytes; weight_bytes counts "
        f"{counted}. Is it kept twice, once for embed and once for linear?"
    )
    assert grown <= limit, (
        f"a tied embedding of {expected_bytes} bytes made the process grow by {grown} bytes: "
        "is it kept twice, once for embed and once for linear?"
    )


def check_nothing_kept(context: Context) -> None:
    """The mapped file may go away once a weight is prepared."""
    dtype = context.capabilities.compute_dtypes[0]
    for scheme in dict.fromkeys(["f32", "bf16", *context.capabilities.weight_schemes]):
        matrix = random_matrix(scheme, OUT_FEATURES, IN_FEATURES, context.torch_generator())
        prepared = prepare(context, [matrix], dtype)
        for tensor in matrix.stored.read().values():
            tensor.zero_()
        check_product(
            prepared,
            activations(context, 3, dtype),
            f"after the file's {scheme} tensor was overwritten (a weight keeps no view of the file)",
        )


def check_misshapen(context: Context) -> None:
    """Parts that do not add up to the matrix are an error that names one."""
    matrix = random_matrix("f32", OUT_FEATURES, IN_FEATURES, context.torch_generator(), name="misshapen")
    spec = weight_spec([matrix], context.capabilities.compute_dtypes[0])
    try:
        context.device.prepare_weight(spec, [matrix.stored, matrix.stored])
    except (CorruptWeights, UnsupportedFeature) as error:
        assert spec.name in str(error) or "misshapen" in str(error), f"the error names no tensor: {error}"
        return
    raise AssertionError(
        f"two parts of {OUT_FEATURES} rows were accepted for a matrix of {OUT_FEATURES}: raise CorruptWeights."
    )


def check_unknown_scheme(context: Context) -> None:
    """A scheme that is neither kept nor known to the reference is an error that names it."""
    matrix = random_matrix("f32", OUT_FEATURES, IN_FEATURES, context.torch_generator())
    stored = StoredTensor(
        scheme="no_such_scheme", shape=matrix.stored.shape, read=matrix.stored.read, source="conformance: weight"
    )
    try:
        context.device.prepare_weight(weight_spec([matrix], context.capabilities.compute_dtypes[0]), [stored])
    except (UnsupportedFeature, ModelError) as error:
        assert "no_such_scheme" in str(error), f"the error for an unknown scheme does not name it: {error}"
        return
    raise AssertionError("a matrix stored as 'no_such_scheme' was accepted: raise UnsupportedFeature.")


def check_overflow(context: Context) -> None:
    """A bfloat16 value beyond float16's range never becomes infinity silently."""
    dense = torch.randn(OUT_FEATURES, IN_FEATURES, generator=context.torch_generator())
    dense[7, 11] = 70000.0
    matrix = stored_matrix(dense.bfloat16())
    try:
        prepared = prepare(context, [matrix], "float16")
    except UnsupportedFeature:
        return
    result = prepared.linear(activations(context, 1, "float16"))
    assert result[:, 7].isfinite().all(), (
        "a weight of 70000, beyond float16's 65504, became infinite: refuse it with UnsupportedFeature."
    )


def _check(name: str, run: Callable[[Context], None]) -> Check:
    return Check(Level.KV_AND_WEIGHTS, f"weights/{name}", run)


def _warm_up(context: Context, dtype: str) -> None:
    """Use each op once, so that what its library allocates for itself is not counted."""
    prepared = prepare(context, [random_matrix("f32", 8, IN_FEATURES, context.torch_generator())], dtype)
    prepared.linear(activations(context, 1, dtype))


def _one_tensor(key: str, tensor: Tensor) -> dict[str, Tensor]:
    return {key: tensor}
