"""Level 6: results are bitwise equal as far as ``Capabilities.determinism`` says; ``none`` promises nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES
from pageport.testing.conformance.cache import bucket
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.engine_bench import EngineBench, random_prompt
from pageport.testing.conformance.kv_rounding import EIGHT_BITS
from pageport.testing.conformance.prepared_weight import IN_FEATURES, activations, prepare, token_buckets
from pageport.testing.conformance.stored_matrix import random_matrix
from pageport.testing.conformance.tiny_engine import TinyEngine, request

NUM_TOKENS = 6  # generated from each prompt
MAX_ROWS = 64
Prompts = Mapping[str, Sequence[int]]
Logits = dict[str, Tensor]  # by request, float32 [tokens, vocab]


def checks(context: Context) -> Iterator[Check]:
    promise = context.capabilities.determinism
    bench = EngineBench(context.capabilities)

    def check(name: str, run: Callable[..., None], dtype: str, *arguments: object, **settings: object) -> Check:
        return Check(
            Level.DETERMINISM,
            f"determinism/{promise}/{dtype}/{name}",
            lambda now: run(bench, now, dtype, *arguments, **settings),
        )

    size = bench.span
    for dtype in context.capabilities.compute_dtypes if promise != "none" else ():
        yield check("the same batch again", same_batch_again, dtype)
        yield check("the same batch in a new engine", same_batch_in_new_engine, dtype)
        if promise != "batch":
            continue
        for form in dict.fromkeys(
            (*PLAIN_SCHEMES, *context.capabilities.weight_schemes, *context.capabilities.quantisations)
        ):
            yield check(f"linear, {form}", linear_in_a_batch, dtype, form)
        for kept in (name for name in context.capabilities.kv_dtypes if name in EIGHT_BITS):
            yield check(f"over a {kept} cache", over_cache, dtype, kept)
        for count in (7, 64):
            yield check(f"batch of {count}", in_a_batch, dtype, count)
        for chunk in (7, size + 1):
            yield check(f"chunks of {chunk}", otherwise, dtype, "in chunks", max_num_batched_tokens=chunk)
        yield check("prefix hit", with_prefix_hits, dtype)
        tight: dict[str, object] = {"num_kv_blocks": bench.num_blocks(10), "max_model_len": 8 * size}
        yield check("preempted, recomputed", otherwise, dtype, "preempted and recomputed", **tight)
        yield check("preempted, swapped", otherwise, dtype, "preempted and swapped", swap_space=0.05, **tight)


# --- from run to run -------------------------------------------------------------------------------------------------


def same_batch_again(bench: EngineBench, context: Context, dtype: str) -> None:
    generator = context.numpy_generator()
    prompts, others = subjects(bench, generator), subjects(bench, generator)
    with open_engine(bench, context, dtype) as engine:
        first = logits_of(engine, prompts)
        require_equal(logits_of(engine, prompts), first, "the same batch run a second time")
        logits_of(engine, others)
        require_equal(logits_of(engine, prompts), first, "the same batch after other work")


def same_batch_in_new_engine(bench: EngineBench, context: Context, dtype: str) -> None:
    prompts = subjects(bench, context.numpy_generator())
    runs = []
    for _ in range(2):
        with open_engine(bench, context, dtype) as engine:
            runs.append(logits_of(engine, prompts))
    require_equal(runs[1], runs[0], "the same batch in a new engine, with weights prepared anew")


# --- whatever else is in the batch -----------------------------------------------------------------------------------


def in_a_batch(bench: EngineBench, context: Context, dtype: str, count: int) -> None:
    generator = context.numpy_generator()
    prompts = subjects(bench, generator)
    alone = logits_alone(bench, context, dtype, prompts)
    fillers = {
        f"filler {i}": random_prompt(generator, int(generator.integers(1, 2 * bench.span)))
        for i in range(count - len(prompts))
    }
    everyone = {**prompts, **fillers}
    with open_engine(bench, context, dtype, max_num_seqs=MAX_ROWS, max_num_batched_tokens=512) as engine:
        for order in ("in order", "shuffled"):
            names = list(everyone) if order == "in order" else generator.permutation(list(everyone)).tolist()
            found = logits_of(engine, {name: everyone[name] for name in names})
            require_equal(found, alone, f"in a batch of {count}, {order}, and not alone")


def otherwise(bench: EngineBench, context: Context, dtype: str, how: str, **settings: object) -> None:
    """Compare requests run together with other settings to each alone."""
    generator = context.numpy_generator()
    size = bench.span
    prompts = {f"{extra}": random_prompt(generator, 3 * size - 3 + extra) for extra in range(6)}
    alone = logits_alone(bench, context, dtype, prompts)
    with open_engine(bench, context, dtype, **settings) as engine:
        require_equal(logits_of(engine, prompts), alone, f"{how}, and not alone at once")
        if "num_kv_blocks" in settings:
            assert engine.stats().preemptions_total > 0, "nobody was preempted: the check has no power"


def with_prefix_hits(bench: EngineBench, context: Context, dtype: str) -> None:
    generator, size = context.numpy_generator(), bench.span
    prompts = {f"{length}": random_prompt(generator, length) for length in (2 * size, 2 * size + 3, 3 * size)}
    alone = logits_alone(bench, context, dtype, prompts)
    with open_engine(bench, context, dtype, enable_prefix_caching=True) as engine:
        logits_of(engine, prompts)
        require_equal(logits_of(engine, prompts), alone, "with the first blocks cached, and not computed alone")
        assert engine.stats().prefix_hit_tokens_total > 0, "the prefix cache was not hit: the check has no power"


def over_cache(bench: EngineBench, context: Context, dtype: str, kept: str) -> None:
    """Keys are read as the cache rounded them, also those of the step itself."""
    generator, size = context.numpy_generator(), bench.span
    prompts = {f"{extra}": random_prompt(generator, 3 * size - 3 + extra) for extra in range(6)}
    alone = logits_alone(bench, context, dtype, prompts, kv_cache_dtype=kept)
    with open_engine(bench, context, dtype, kv_cache_dtype=kept, enable_prefix_caching=True) as engine:
        require_equal(logits_of(engine, prompts), alone, f"together over a {kept} cache, and not alone")
        require_equal(logits_of(engine, prompts), alone, f"with prefix hits in a {kept} cache, and not alone")
    with open_engine(bench, context, dtype, kv_cache_dtype=kept, max_num_batched_tokens=7) as engine:
        require_equal(logits_of(engine, prompts), alone, f"in chunks over a {kept} cache, and not alone at once")


def linear_in_a_batch(_bench: EngineBench, context: Context, dtype: str, form: str) -> None:
    """Multiply rows alone, some at a time and all at once; ``form`` is a stored scheme or a quantisation."""
    is_scheme = form in (*PLAIN_SCHEMES, *BLOCK_SCHEMES)
    matrix = random_matrix(form if is_scheme else "f32", 200, IN_FEATURES, context.torch_generator())
    prepared = prepare(context, [matrix], dtype, quantisation=None if is_scheme else form)
    x = activations(context, 70, dtype)
    together = prepared.linear(x)
    for start, stop in ((0, 1), (1, 2), (5, 8), (20, 37), (37, 70), (69, 70)):
        rows = slice(start, start + bucket(stop - start, token_buckets(context)))
        off = prepared.linear(x[rows]) != together[rows]
        assert not off.any(), (
            f"rows {start} to {rows.stop - 1} of 70 times a matrix ({form}): alone, {int(off.sum())} of {off.numel()} "
            "results differ in bits from those of all rows at once; does the order of a sum, or an activation's scale, "
            "depend on the number of rows?"
        )


# --- shared ----------------------------------------------------------------------------------------------------------


def subjects(bench: EngineBench, generator: np.random.Generator) -> Prompts:
    """Return seven prompts around block edges."""
    size = bench.span
    lengths = (1, 2, max(1, size - 1), size, size + 1, 2 * size + 1, 3 * size + 2)
    return {f"{place}": random_prompt(generator, length) for place, length in enumerate(lengths)}


def open_engine(bench: EngineBench, context: Context, dtype: str, **settings: object) -> TinyEngine:
    return bench.open(context.device, bench.llama, dtype=dtype, **settings)


def logits_alone(bench: EngineBench, context: Context, dtype: str, prompts: Prompts, **settings: object) -> Logits:
    with open_engine(bench, context, dtype, **settings) as engine:
        return {name: logits_of(engine, {name: prompt})[name] for name, prompt in prompts.items()}


def logits_of(engine: TinyEngine, prompts: Prompts) -> Logits:
    """Run greedy requests together and return the logits of every token."""
    seen: dict[str, list[Tensor]] = {name: [] for name in prompts}

    def recorder(name: str) -> Callable[[list[int], Tensor], Tensor]:
        def record(_output: list[int], logits: Tensor) -> Tensor:
            seen[name].append(logits.to("cpu", copy=True))
            return logits

        return record

    answers = engine.run(
        *(request(name, prompt, max_tokens=NUM_TOKENS, processor=recorder(name)) for name, prompt in prompts.items())
    )
    for name in prompts:
        error = answers[name, 0].error
        assert error is None, f"a prompt of {len(prompts[name])} tokens ended with an error: {error}"
    return {name: torch.stack(rows) for name, rows in seen.items()}


def require_equal(found: Logits, expected: Logits, how: str) -> None:
    """Compare bit by bit those requests that ``expected`` has."""
    for name, rows in expected.items():
        if torch.equal(found[name], rows):
            continue
        step, token = (found[name] != rows).nonzero()[0].tolist()
        difference = float((found[name][step] - rows[step]).abs().max())
        raise AssertionError(
            f"{how}: logits for output token {step} differ in bits, first of vocabulary entry {token}, by up to "
            f"{difference:.3g}; does the order of a summation depend on the number of rows, of splits or on chance? "
            "Make it fixed, or declare less in Capabilities.determinism"
        )
