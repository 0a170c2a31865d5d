"""Level 5: tiny models through the real engine say what they say on the plain reference, however they are scheduled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pageport.config import QUANTISATIONS
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.declared import KV_DTYPES
from pageport.testing.conformance.engine_bench import EngineBench, random_prompt
from pageport.testing.conformance.engine_reference import TOLERANCES
from pageport.testing.conformance.graph_check import counted_replays
from pageport.testing.conformance.kv_rounding import EIGHT_BITS
from pageport.testing.conformance.program_check import program_checks
from pageport.testing.conformance.tiny_engine import TinyEngine, TinyModel, beam_request, request


def checks(context: Context) -> Iterator[Check]:
    bench = EngineBench(context.capabilities)

    def check(name: str, run: Callable[..., None], *arguments: object, **settings: object) -> Check:
        return Check(Level.ENGINE, f"engine/{name}", lambda now: run(bench, now, *arguments, **settings))

    size = bench.span
    if "graph" in context.capabilities.features:
        for name, model in (("llama", bench.llama), ("gpt2", bench.gpt2)):
            yield check(f"{name}/graphs replayed", replayed, model)
            yield check(f"{name}/graphs turned off", together, model, enforce_eager=True)
    yield from program_checks(bench)
    yield check("llama/preempted, recomputed", preempted, bench.llama)
    yield check("llama/preempted, swapped", swapped, bench.llama)
    for name, model in (("llama", bench.llama), ("gpt2", bench.gpt2)):
        yield check(f"{name}/together", together, model)
        yield check(f"{name}/chunks of 7", together, model, max_num_batched_tokens=7)
        yield check(f"{name}/prefix hit", prefix_hit, model)
        yield check(f"{name}/fork n=4", fork, model)
    yield check("llama/alone", alone, bench.llama)
    for chunk in (1, size, size + 1):
        yield check(f"llama/chunks of {chunk}", together, bench.llama, max_num_batched_tokens=chunk)
    for depth in sorted({0, context.capabilities.pipeline_depth}):
        yield check(f"llama/pipeline depth {depth}", together, bench.llama, pipeline_depth=depth)
    yield check("llama/beam search", beam_search)
    yield check("llama/aborted", aborted)
    if bench.has_sliding_window:
        for chunk in (1, 7, size, size + 1, 8 * size):
            yield check(f"mistral/past the window, chunks of {chunk}", past_the_window, max_num_batched_tokens=chunk)
        yield check(
            "mistral/past the window, prefix hit",
            past_the_window,
            max_num_batched_tokens=4 * size,
            enable_prefix_caching=True,
        )
    for dtype in context.capabilities.compute_dtypes:
        if dtype != bench.dtype and dtype in TOLERANCES:
            yield check(f"{dtype}/llama", in_dtype, bench.llama, dtype)
            yield check(f"{dtype}/gpt2", in_dtype, bench.gpt2, dtype)
    for dtype in context.capabilities.kv_dtypes:
        if dtype != bench.kv_dtype(bench.dtype):
            yield check(f"{bench.dtype} over {dtype} cache/llama", in_dtype, bench.llama, bench.dtype, dtype)
    yield from refusals(bench)


# --- one request after the other, and together -----------------------------------------------------------------------


def alone(bench: EngineBench, context: Context, model: TinyModel) -> None:
    generator = context.numpy_generator()
    with bench.open(context.device, model) as engine:
        for length in prompt_lengths(bench):
            engine.run(request(f"{length}", random_prompt(generator, length), max_tokens=bench.span + 8))
        hint = "one request at a time, each in blocks that others used before it"
        bench.compare(context, model, engine.answers.values(), hint)
        require_free(engine)


def together(bench: EngineBench, context: Context, model: TinyModel, **settings: object) -> None:
    generator = context.numpy_generator()
    prompts = [random_prompt(generator, length) for length in prompt_lengths(bench)]
    with bench.open(context.device, model, **settings) as engine:
        engine.run(*(request(f"{len(p)}", p, max_tokens=bench.span + 8) for p in prompts))
        setting = ", ".join(f"{name} {value}" for name, value in settings.items()) or "prefills beside decodes"
        hint = f"with {setting}: does every row use its own block table, length and position in each step?"
        bench.compare(context, model, engine.answers.values(), hint)
        require_free(engine)


def replayed(bench: EngineBench, context: Context, model: TinyModel) -> None:
    """Let requests end one after the other, so that each number of them is captured and replayed at new lengths."""
    generator = context.numpy_generator()
    prompts = [random_prompt(generator, length) for length in prompt_lengths(bench)]
    with counted_replays(context.device) as count, bench.open(context.device, model) as engine:
        engine.run(*(request(f"{p}", prompts[p], max_tokens=bench.span + 5 * p) for p in range(len(prompts))))
        hint = (
            "with captured decode steps: does a replay read token ids, positions, slots, lengths, block tables and the "
            "newest plan from memory, and keep no number of the step that was captured?"
        )
        bench.compare(context, model, engine.answers.values(), hint)
        assert count.replays > len(prompts), f"graphs were replayed {count.replays} times: the check has no power"
        require_free(engine)


def in_dtype(bench: EngineBench, context: Context, model: TinyModel, dtype: str, kv_dtype: str | None = None) -> None:
    generator = context.numpy_generator()
    kv_dtype = kv_dtype or bench.kv_dtype(dtype)
    prompts = [random_prompt(generator, length) for length in prompt_lengths(bench)]
    with bench.open(context.device, model, dtype=dtype, kv_cache_dtype=kv_dtype) as engine:
        engine.run(*(request(f"{len(p)}", p, max_tokens=bench.span + 8) for p in prompts))
        kept = kv_dtype if kv_dtype in EIGHT_BITS else "float32"
        hint = f"computed in {dtype} over a {kv_dtype} cache, against the float32 reference over a {kept} cache"
        bench.compare(context, model, engine.answers.values(), hint, dtype, kv_dtype)
        require_free(engine)


# --- blocks that are shared, moved and given back --------------------------------------------------------------------


def fork(bench: EngineBench, context: Context, model: TinyModel) -> None:
    generator, size = context.numpy_generator(), bench.span
    with bench.open(context.device, model) as engine:
        for length in sorted({max(1, size - 3), size, 2 * size + 5}):
            prompt = random_prompt(generator, length)
            seed = int(generator.integers(1 << 30))
            # So hot that the children part at once.
            engine.run(request(f"{length}", prompt, n=4, temperature=5.0, seed=seed, max_tokens=size + 8))
        hint = (
            "4 children of one prompt, each against itself alone: they share the prompt's last block until they write, "
            "so copy_blocks must copy keys and values of every layer"
        )
        bench.compare(context, model, engine.answers.values(), hint)
        assert bench.block_size == 1 or engine.stats().copied_blocks_total > 0, (
            "no block was copied: the check has no power"
        )
        require_free(engine)


def prefix_hit(bench: EngineBench, context: Context, model: TinyModel) -> None:
    generator, size = context.numpy_generator(), bench.span
    with bench.open(context.device, model, enable_prefix_caching=True) as engine:
        for length in (2 * size, 2 * size + 1, 3 * size - 1, 3 * size):
            prompt = random_prompt(generator, length)
            for name in ("miss", "hit"):
                engine.run(request(f"{name} {length}", prompt, max_tokens=size // 2 + 2))
        hint = "a prompt whose first blocks are cached already: queries start in the middle, keys at position 0"
        bench.compare(context, model, engine.answers.values(), hint)
        hits = [answer.num_cached_tokens for (name, _), answer in engine.answers.items() if name.startswith("hit")]
        assert min(hits) >= size, "the prefix cache was not hit: the check has no power"
        require_free(engine)


def preempted(bench: EngineBench, context: Context, model: TinyModel) -> None:
    with squeezed(bench, context, model) as engine:
        hint = "preempted and computed again from its first token, in blocks that others used meanwhile"
        bench.compare(context, model, engine.answers.values(), hint)
        assert engine.stats().preemptions_total > 0, "nobody was preempted: the check has no power"
        require_free(engine)


def swapped(bench: EngineBench, context: Context, model: TinyModel) -> None:
    with squeezed(bench, context, model, swap_space=0.05) as engine:
        hint = (
            "preempted, its blocks moved to host memory and back into others: import_blocks must restore what "
            "export_blocks read, keys and values of every layer"
        )
        bench.compare(context, model, engine.answers.values(), hint)
        assert engine.stats().swapped_out_blocks_total > 0, "nothing was swapped out: the check has no power"
        require_free(engine)


@contextmanager
def squeezed(bench: EngineBench, context: Context, model: TinyModel, **settings: object) -> Iterator[TinyEngine]:
    """Run six requests in a cache for two or three, and yield the engine."""
    generator, size = context.numpy_generator(), bench.span
    prompts = [random_prompt(generator, 2 * size + extra) for extra in range(6)]
    with bench.open(
        context.device, model, num_kv_blocks=bench.num_blocks(10), max_model_len=8 * size, **settings
    ) as engine:
        engine.run(*(request(f"{len(p)}", p, max_tokens=2 * size) for p in prompts))
        yield engine


def past_the_window(bench: EngineBench, context: Context, **settings: object) -> None:
    generator, size = context.numpy_generator(), bench.span
    prompt, shorter = random_prompt(generator, 4 * size + 6), random_prompt(generator, size - 1)
    with bench.open(context.device, bench.mistral, **settings) as engine:
        for name in ("first", "again") if settings.get("enable_prefix_caching") else ("first",):
            engine.run(
                request(f"{name}, long", prompt, max_tokens=4 * size),
                request(f"{name}, short", shorter, max_tokens=4 * size),
            )
        hint = f"a window of {size}: blocks that it has passed are given to others and may hold anything"
        bench.compare(context, bench.mistral, engine.answers.values(), hint)
        require_free(engine)


# --- searches and ends -----------------------------------------------------------------------------------------------


def beam_search(bench: EngineBench, context: Context) -> None:
    size, width = bench.span, 4
    prompt = random_prompt(context.numpy_generator(), 2 * size - 3)
    max_tokens = size + 4
    reference = bench.reference(bench.llama)
    expected = reference.beams(prompt, width=width, max_tokens=max_tokens)
    with bench.open(context.device, bench.llama) as engine:
        answers = engine.run(beam_request("beams", prompt, width=width, max_tokens=max_tokens))
        require_free(engine)
    # A beam's logprob adds one error a token.
    tolerance = max_tokens * TOLERANCES[bench.dtype]
    others = 0
    for place, theirs in enumerate(expected):
        ours = answers["beams", place]
        assert ours.error is None, f"beam {place} ended with an error: {ours.error}"
        assert ours.cumulative_logprob is not None and theirs.cumulative_logprob is not None
        logprobs = reference.logprobs(prompt, ours.tokens)
        truth = float(logprobs[range(len(ours.tokens)), ours.tokens].sum())
        assert abs(ours.cumulative_logprob - truth) <= tolerance, (
            f"beam {place} claims logprob {ours.cumulative_logprob:.5g}, its tokens have {truth:.5g} (tolerance "
            f"{tolerance:g}): beams share blocks until they write, so copy_blocks must copy every layer"
        )
        others += ours.tokens != theirs.tokens
        assert abs(truth - theirs.cumulative_logprob) <= tolerance, (
            f"beam {place} has logprob {truth:.5g}, the reference finds one of {theirs.cumulative_logprob:.5g} "
            f"(tolerance {tolerance:g}): the logits that ranked the beams are off"
        )
    context.measured = f"{width} beams" + (f", {others} by near ties" if others else "")


def aborted(bench: EngineBench, context: Context) -> None:
    generator, size = context.numpy_generator(), bench.span
    lengths = prompt_lengths(bench) * 2
    requests = [
        request(f"{i}", random_prompt(generator, length), n=1 + i % 2, temperature=5.0, max_tokens=size + 8)
        for i, length in enumerate(lengths)
    ]
    ends = dict(zip(generator.integers(0, size, len(requests)).tolist(), requests[::2], strict=False))
    with bench.open(context.device, bench.llama) as engine:

        def abort_one(step: int) -> None:
            if step in ends:
                engine.engine.abort(ends[step].request_id)
            engine.engine.check()

        engine.run(*requests, before_step=abort_one)
        require_free(engine)
        hint = "others were aborted beside it and their blocks given away"
        bench.compare(context, bench.llama, engine.answers.values(), hint)


# --- what is not declared --------------------------------------------------------------------------------------------


def refusals(bench: EngineBench) -> Iterator[Check]:
    """Yield a check for each thing an engine could be asked that this device does not declare."""

    def check(what: str, model: TinyModel, **settings: object) -> Check:
        return Check(
            Level.ENGINE,
            f"engine/refuses {what}",
            lambda context: refused(bench, context, what, model, **settings),
        )

    capabilities = bench.capabilities
    for dtype in TOLERANCES:
        if dtype not in capabilities.compute_dtypes:
            yield check(dtype, bench.llama, dtype=dtype, kv_cache_dtype=capabilities.kv_dtypes[0])
    for dtype in KV_DTYPES:
        if dtype not in capabilities.kv_dtypes:
            yield check(f"KV dtype {dtype}", bench.llama, kv_cache_dtype=dtype)
    for quantisation in QUANTISATIONS:
        if quantisation not in capabilities.quantisations:
            yield check(f"--quantization {quantisation}", bench.llama, quantization=quantisation)
    if not bench.has_sliding_window:
        yield check("sliding", bench.mistral)
    odd_size = max(capabilities.block_sizes) + 1
    yield check(f"block size {odd_size}", bench.llama, block_size=odd_size)


def refused(bench: EngineBench, context: Context, what: str, model: TinyModel, **settings: object) -> None:
    try:
        bench.open(context.device, model, **settings).close()
    except UnsupportedFeature as error:
        assert what in str(error), f"{what} is refused, but the message does not name it: {error}"
        return
    raise AssertionError(f"{what} is not declared, but an engine of it is built; it must raise UnsupportedFeature")


# --- shared ----------------------------------------------------------------------------------------------------------


def prompt_lengths(bench: EngineBench) -> list[int]:
    """Return lengths around block edges."""
    size = bench.span
    return sorted({1, max(1, size - 1), size, size + 1, 2 * size + 1, 3 * size + 2})


def require_free(engine: TinyEngine) -> None:
    engine.engine.check()
    used = engine.stats().kv_blocks_used
    assert used == 0, f"{used} blocks are still in use after every request ended"
