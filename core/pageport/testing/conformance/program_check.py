"""Checks of ``build_model``: every bucket gives the reference's logits, whatever fills it up, and chooses tokens."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from pageport.backend.program import ProgramOutput
from pageport.config import ModelConfig
from pageport.engine.bucket_plan import BucketPlan
from pageport.engine.builder import open_model
from pageport.testing.checked_program import checked_programs
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.engine_bench import EngineBench, random_prompt
from pageport.testing.conformance.engine_reference import TOLERANCES
from pageport.testing.conformance.program_scene import ProgramRow, ProgramScene
from pageport.testing.conformance.program_verdict import judge_choice, judge_logits
from pageport.testing.conformance.sample_check import ChoiceRow, batch_on, choice_batch
from pageport.testing.conformance.tiny_engine import TinyModel, request

MAX_REQUESTS = 8
# A bucket that its first step compiles takes longer than this, and longer than so many steps after it.
SLOW_S, SLOW_STEPS = 0.2, 10
# Which differ so much that another row's would choose another token nearly always.
CHOICES = (ChoiceRow(50.0), ChoiceRow(0.0), ChoiceRow(50.0, top_k=40), ChoiceRow(50.0, top_p=0.9, min_p=0.01))


def program_checks(bench: EngineBench) -> Iterator[Check]:
    """Yield the checks where static shapes are declared."""
    if not bench.capabilities.static_shapes:
        return

    def check(name: str, run: Callable[..., None], *arguments: object) -> Check:
        return Check(Level.ENGINE, f"engine/program/{name}", lambda now: run(bench, now, *arguments))

    models = {"llama": bench.llama, "gpt2": bench.gpt2}
    if bench.has_sliding_window:
        models["mistral"] = bench.mistral
    yield check("llama/compiled beforehand", compiled_beforehand)
    yield check("llama/padding is written nowhere", padding_is_written_nowhere)
    yield check("llama/outputs stay", outputs_stay)
    yield check("llama/tokens are chosen", tokens_are_chosen)
    for name, model in models.items():
        yield check(f"{name}/every bucket", every_bucket, model)
    yield check("llama/shapes of a mixed run", shapes_of_a_mixed_run)


def every_bucket(bench: EngineBench, context: Context, model: TinyModel) -> None:
    """Fill every bucket all but for one place, where it has two."""
    generator, plan = context.numpy_generator(), bucket_plan(bench, model)
    reference, name = bench.reference(model), model.architecture if model.sliding_window is None else "mistral"
    with open_scene(bench, context, model, plan) as scene:
        for bucket in plan.buckets:
            if bucket.requests == bucket.tokens > 1:
                rows, histories = continued(bench, scene, plan, generator, bucket.requests - 1)
            else:
                length = min(max(1, bucket.tokens - 1), bucket.context, model.max_positions)
                rows = [ProgramRow(random_prompt(generator, length), 0, scene.new_blocks(length))]
                histories = [list(rows[0].tokens)]
            logits = scene.run(bucket, rows).logits()
            shape = (bucket.requests, scene.vocab_size)
            assert logits.shape == shape, f"{name}: logits of {bucket} are {list(logits.shape)}, not {list(shape)}"
            judge_logits(f"{name}, {bucket}", reference, histories, logits, TOLERANCES[bench.dtype])
            scene.give_back(rows)
    context.measured = f"{len(plan.buckets)} buckets"


def padding_is_written_nowhere(bench: EngineBench, context: Context) -> None:
    """Blocks that no request of a step has are what they were."""
    generator, plan = context.numpy_generator(), bucket_plan(bench, bench.llama)
    with open_scene(bench, context, bench.llama, plan) as scene:
        length = bench.span // 2 + 1
        row = ProgramRow(random_prompt(generator, length), 0, scene.new_blocks(length + 1))
        steps = [row, ProgramRow(random_prompt(generator, 1), length, row.blocks)]
        others = sorted(set(range(scene.num_blocks)) - set(row.blocks[0]))
        before = scene.export(0, others)
        for step, bucket in zip(steps, (plan.buckets[-1], plan.buckets[plan_decodes(plan) - 1]), strict=True):
            scene.run(bucket, [step])
            changed = (scene.export(0, others) != before).any(1).nonzero().flatten().tolist()
            assert not changed, (
                f"a step of {bucket} with {len(step.tokens)} tokens changes block {others[changed[0]]}, which no "
                "request has: tokens with slot -1 fill the step up and are to be written nowhere"
            )


def outputs_stay(bench: EngineBench, context: Context) -> None:
    """What a step gave is read after the next one."""
    generator, plan = context.numpy_generator(), bucket_plan(bench, bench.llama)
    prompt, other = (random_prompt(generator, bench.span // 2) for _ in range(2))
    bucket = plan.of_prompt(len(prompt), len(prompt))
    with open_scene(bench, context, bench.llama, plan) as scene:

        def run(tokens: list[int]) -> ProgramOutput:
            return scene.run(bucket, [ProgramRow(tokens, 0, scene.new_blocks(len(tokens)))])

        output, _ = run(prompt), run(other)
        kept = output.logits().cpu().clone(), output.hidden().cpu().clone()
        again = run(prompt)
        expected = again.logits().cpu(), again.hidden().cpu()
    for what, found, right in zip(("logits", "hidden states"), kept, expected, strict=True):
        rows = len(prompt) if what == "hidden states" else 1
        off = float((found[:rows].float() - right[:rows].float()).abs().max())
        assert off <= TOLERANCES[bench.dtype], (
            f"{what} of a step of {bucket}, read after the next one, are off by {off:.3g}: does a later step change "
            "what an earlier one returned?"
        )


def tokens_are_chosen(bench: EngineBench, context: Context) -> None:
    """Tokens are those that the reference chooses from the same logits with each request's own parameters."""
    generator, plan = context.numpy_generator(), bucket_plan(bench, bench.llama)
    with open_scene(bench, context, bench.llama, plan) as scene:
        if not scene.program.samples:
            context.measured = "core samples"
            return
        for bucket in plan.buckets[: plan_decodes(plan)]:
            count = max(1, bucket.requests - 1)
            rows, _ = continued(bench, scene, plan, generator, count)
            kinds = [CHOICES[index % len(CHOICES)] for index in range(count)]
            padding = (bucket.requests - count) * [ChoiceRow(0.0)]
            batch = choice_batch(context.torch_generator(), [*kinds, *padding], scene.vocab_size)
            output = scene.run(bucket, rows, batch_on(context.device.torch_device, batch))
            assert output.choice is not None, f"a step of {bucket} is told how to choose, and its choice is None."
            found = output.choice.token_ids.cpu()[:count]
            judge_choice(bucket, found, output.logits().cpu(), batch, count)
            scene.give_back(rows)


def compiled_beforehand(bench: EngineBench, context: Context) -> None:
    """Time each bucket's first step and the ones after it."""
    generator, plan = context.numpy_generator(), bucket_plan(bench, bench.llama)
    slow: list[str] = []
    with open_scene(bench, context, bench.llama, plan) as scene:
        row = ProgramRow(random_prompt(generator, 1), 0, scene.new_blocks(1))
        for bucket in plan.buckets:
            seconds = []
            for _ in range(6):
                start = time.perf_counter()
                scene.run(bucket, [row]).logits().cpu()
                seconds.append(time.perf_counter() - start)
            if seconds[0] > SLOW_S + SLOW_STEPS * median(seconds[1:]):
                slow.append(f"{bucket} {seconds[0]:.2f} s, then {median(seconds[1:]):.3f} s")
    # One may be slow by chance, or because libraries are loaded.
    assert len(slow) < min(2, len(plan.buckets)), (
        f"the first step of a bucket takes much longer than later ones: {'; '.join(slow)}. Is it compiled then? "
        "compile() is to do that before the first step"
    )


def shapes_of_a_mixed_run(bench: EngineBench, context: Context) -> None:
    """Let an engine fork, preempt, abort and hit prefixes; it asks for the shapes it had compiled and no other."""
    generator, size = context.numpy_generator(), bench.span
    shared = random_prompt(generator, size)
    prompts = [[*shared, *random_prompt(generator, 1 + 5 * index)] for index in range(6)]
    with (
        checked_programs(context.device) as records,
        bench.open(
            context.device,
            bench.llama,
            num_kv_blocks=bench.num_blocks(10),
            max_model_len=8 * size,
            enable_prefix_caching=True,
        ) as engine,
    ):

        def abort_one(step: int) -> None:
            if step == size // 2:
                engine.engine.abort("1")

        requests = [
            request(f"{index}", prompt, n=1 + index % 2, temperature=5.0 * (index % 2), max_tokens=size + 8)
            for index, prompt in enumerate(prompts)
        ]
        num_compiled = len(context.device.compilations)
        engine.run(*requests, before_step=abort_one)
        late = context.device.compilations[num_compiled:]
        assert not late, f"after the first step the device compiles {late[0].bucket}: warm every shape up before it"
        hint = "forked, preempted, aborted and after prefix hits, in padded steps"
        bench.compare(context, bench.llama, engine.answers.values(), hint)
        assert engine.stats().preemptions_total > 0, "nobody was preempted: the check has no power"
    (record,) = records
    assert sorted(record.compiled) == sorted(record.buckets), (
        f"{record.compiled} were compiled of {record.buckets}: each is to be, once"
    )
    assert len(record.steps) > 1, f"all steps had the shape {[*record.steps]}: the check has no power"
    context.measured += f" in {record.steps.total()} steps of {len(record.steps)} shapes"


# --- shared ----------------------------------------------------------------------------------------------------------


def bucket_plan(bench: EngineBench, model: TinyModel) -> BucketPlan:
    return BucketPlan(
        bench.capabilities,
        max_num_seqs=MAX_REQUESTS,
        step_tokens=2 * bench.span,
        max_model_len=min(4 * bench.span, model.max_positions),
        block_sizes=[bench.block_size],
    )


def plan_decodes(plan: BucketPlan) -> int:
    """Return how many of the buckets, the first ones, are for decodes."""
    return sum(bucket.requests == bucket.tokens for bucket in plan.buckets)


def open_scene(bench: EngineBench, context: Context, model: TinyModel, plan: BucketPlan) -> ProgramScene:
    with TemporaryDirectory(prefix="pageport-conformance-") as folder:
        model.write(Path(folder))
        return ProgramScene(
            context.device,
            open_model(ModelConfig(model=folder)),
            plan.buckets,
            dtype=bench.dtype,
            kv_dtype=bench.kv_dtype(bench.dtype),
            block_size=bench.block_size,
            num_blocks=bench.num_blocks(32),
            generator=context.numpy_generator(),
        )


def continued(
    bench: EngineBench, scene: ProgramScene, plan: BucketPlan, generator: np.random.Generator, count: int
) -> tuple[list[ProgramRow], list[list[int]]]:
    """Compute prompts and return each with its next token, and the whole histories."""
    rows, histories = [], []
    for index in range(count):
        length = 1 + (index * 5 + bench.span - 1) % (plan.max_tokens - 1) if plan.max_tokens > 1 else 1
        history = random_prompt(generator, length + 1)
        blocks = scene.new_blocks(length + 1)
        scene.run(plan.of_prompt(length, length), [ProgramRow(history[:-1], 0, blocks)])
        rows.append(ProgramRow(history[-1:], length, blocks))
        histories.append(history)
    return rows, histories
