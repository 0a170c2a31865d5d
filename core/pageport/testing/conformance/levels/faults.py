"""Level 7: what goes wrong stays where it went wrong, and is said in one sentence."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.backend.program import ModelProgram
from pageport.errors import OutOfMemory
from pageport.testing.conformance.check import Check, Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.engine_bench import EngineBench, random_prompt
from pageport.testing.conformance.tiny_engine import Answer, TinyModel, request
from pageport.testing.tiny_model import BOS

# An engine says what happened within this time; slower devices get ten times what the same request took before.
PATIENCE_S = 5.0
INJECTED = "injected by the conformance suite"
# In place of an op, where a device runs whole models.
PROGRAM = "a program's step"


def checks(context: Context) -> Iterator[Check]:
    bench = EngineBench(context.capabilities)

    def check(name: str, run: Callable[..., None], *arguments: object) -> Check:
        return Check(Level.FAULTS, f"faults/{name}", lambda now: run(bench, now, *arguments))

    is_static = context.capabilities.static_shapes
    for op in (PROGRAM,) if is_static else ("attention", "linear", "write_kv"):
        yield check(f"error in {op}, prefill", error_in_a_step, op, 0)
        yield check(f"error in {op}, decode", error_in_a_step, op, 3)
    if not is_static:
        # Called once a step: it raises in the step after.
        yield check("error in plan", error_in_a_step, "plan", 2)
    yield check("pool too large", pool_too_large)
    yield check("NaN in one request", nan_in_one_request)
    yield check("closed with work in flight", closed_with_work_in_flight)


# --- a step that fails -----------------------------------------------------------------------------------------------


class Fault:
    """Raises once, from the second call of an op after it was armed: by then half of the step is done."""

    def __init__(self) -> None:
        self.is_armed = False
        self.has_raised = False
        self._calls = 0

    def strike(self) -> None:
        if self.is_armed and not self.has_raised:
            self._calls += 1
            if self._calls == 2:
                self.has_raised = True
                raise RuntimeError(f"device error {INJECTED}")


@contextmanager
def faulty(device: Device, op: str) -> Iterator[Fault]:
    """Put a fault before an op of ``device``, or ``PROGRAM``; engines built meanwhile have it."""
    fault = Fault()
    name = "build_model" if op == PROGRAM else op
    healthy = getattr(device, name)

    def build(*arguments: Any) -> ModelProgram:
        program: ModelProgram = healthy(*arguments)
        setattr(program, "step", striking(fault, program.step))  # noqa: B010 - a method is replaced
        return program

    setattr(device, name, build if op == PROGRAM else striking(fault, healthy))
    try:
        yield fault
    finally:
        delattr(device, name)


def striking(fault: Fault, healthy: Callable[..., object]) -> Callable[..., object]:
    """Return a function that may fail before it does what it should."""

    def call(*arguments: object, **named: object) -> object:
        fault.strike()
        return healthy(*arguments, **named)

    return call


def error_in_a_step(bench: EngineBench, context: Context, op: str, failing_step: int) -> None:
    """Let an op raise in one step: its requests end with that error, one that waits and one that comes are right."""
    generator, size = context.numpy_generator(), bench.span
    prompts = {name: random_prompt(generator, size + 3) for name in ("struck 0", "struck 1", "waiting", "next")}
    requests = {name: request(name, prompt, max_tokens=8) for name, prompt in prompts.items()}
    # A replayed step calls no op, and its plan all the same.
    settings: dict[str, object] = {"max_num_seqs": 2, "enforce_eager": op != "plan"}
    with faulty(context.device, op) as fault, bench.open(context.device, bench.llama, **settings) as engine:
        started = time.perf_counter()
        engine.run(request("warm-up", prompts["next"], max_tokens=8))
        error = engine.answers["warm-up", 0].error
        assert error is None, f"a request ended with an error before one was injected: {error}"
        patience_s = max(PATIENCE_S, 10 * (time.perf_counter() - started))

        def arm(step: int) -> None:
            fault.is_armed = fault.is_armed or step == failing_step

        def run() -> None:
            engine.run(requests["struck 0"], requests["struck 1"], requests["waiting"], before_step=arm)
            engine.run(requests["next"])

        within(patience_s, run, f"the engine neither goes on nor stops after an error in {op}")
        assert fault.has_raised, f"{op} was not called after step {failing_step}: the check has no power"
        answers = {name: engine.answers[name, 0] for name in prompts}
        for name in ("struck 0", "struck 1"):
            require_error(answers[name], INJECTED, f"a request of the step in which {op} raised")
        unharmed = [answers["waiting"], answers["next"]]
        for answer in unharmed:
            assert answer.error is None, (
                f"a request after the failed step ended with an error too ({answer.error}): does an exception in {op} "
                "leave something half done that the next step stumbles over?"
            )
        bench.compare(context, bench.llama, unharmed, f"after a step in which {op} raised: did it leave state behind?")
        engine.engine.check()
        assert engine.stats().kv_blocks_used == 0, "blocks of the failed requests are still in use"


def nan_in_one_request(bench: EngineBench, context: Context) -> None:
    """Give one token NaN as its embedding: who sends it gets an error, neighbours and heirs of its blocks nothing."""
    generator, size = context.numpy_generator(), bench.span
    poison = BOS
    model = TinyModel(head_size=bench.llama.head_size, max_positions=bench.llama.max_positions, nan_token=poison)
    sick = random_prompt(generator, size + 3)
    sick[size // 2] = poison
    healthy = {f"beside {i}": random_prompt(generator, length) for i, length in enumerate((1, size, 2 * size + 1))}
    # Few blocks: whoever comes later gets those that hold NaN.
    settings = {"num_kv_blocks": bench.num_blocks(12), "max_model_len": 8 * size}
    with bench.open(context.device, model, **settings) as engine:
        requests = [request(name, prompt, max_tokens=8) for name, prompt in healthy.items()]
        engine.run(*requests[:1], request("sick", sick, max_tokens=8), *requests[1:])
        require_error(engine.answers.pop(("sick", 0)), "", "the request whose hidden states are NaN")
        for turn in range(3):
            engine.run(
                *(request(f"after {turn}.{i}", random_prompt(generator, size + 2 + i), max_tokens=8) for i in range(3))
            )
        for (name, _), answer in engine.answers.items():
            whose = "in its neighbour's row" if name.startswith("beside") else "in blocks it inherited"
            assert answer.error is None, (
                f"NaN {whose} ended a healthy request ({answer.error}): rows must not be reduced together, and what "
                "lies in unused slots must be masked by selection, since 0 * NaN is NaN"
            )
        bench.compare(context, model, engine.answers.values(), "beside or after a request of NaN")
        engine.engine.check()


# --- memory, and the end ---------------------------------------------------------------------------------------------


def pool_too_large(bench: EngineBench, context: Context) -> None:
    device = context.device
    spec = KVSpec(
        num_layers=2,
        num_kv_heads=8,
        head_size=bench.llama.head_size,
        value_head_size=bench.llama.head_size,
        block_size=bench.block_size,
        dtype=bench.kv_dtype(bench.dtype),
    )
    num_blocks = 2 * device.memory().total // device.bytes_per_block(spec) + 1
    try:
        device.free_kv(device.allocate_kv(spec, num_blocks))
    except OutOfMemory as error:
        require_sentence(str(error), "the message of OutOfMemory")
        assert any(character.isdigit() for character in str(error)), f"OutOfMemory without its arithmetic: {error}"
    except Exception as error:
        raise AssertionError(
            f"a KV cache of twice the device's memory raises {type(error).__name__} ({error}) and not OutOfMemory"
        ) from error
    else:
        raise AssertionError(f"a KV cache of {num_blocks} blocks, twice the device's memory, is allocated")
    require_works(bench, context, device, "after an allocation that did not fit")


def closed_with_work_in_flight(bench: EngineBench, context: Context) -> None:
    generator, device = context.numpy_generator(), context.device
    for _ in range(3):
        engine = bench.open(device, bench.llama)
        for i in range(4):
            engine.add(request(f"{i}", random_prompt(generator, 2 * bench.span + i), max_tokens=20))
        for _ in range(3):
            engine.step()
        within(PATIENCE_S, engine.close, "an engine with work in flight does not close")
        within(PATIENCE_S, engine.close, "an engine does not close twice")
    require_works(bench, context, device, "after engines were closed with work in flight")


# --- shared ----------------------------------------------------------------------------------------------------------


def require_works(bench: EngineBench, context: Context, device: Device, when: str) -> None:
    prompt = random_prompt(context.numpy_generator(), bench.span + 3)
    with bench.open(device, bench.llama) as engine:
        engine.run(request("next", prompt, max_tokens=8))
        bench.compare(context, bench.llama, engine.answers.values(), when)


def require_error(answer: Answer, words: str, who: str) -> None:
    assert answer.finish_reason == "error" and answer.error, f"{who} ended with {answer.finish_reason} and no error"
    assert words in answer.error, f"{who} ended with another error: {answer.error}"
    require_sentence(answer.error, f"the error of {who}")


def require_sentence(text: str, what: str) -> None:
    assert text.strip() and "\n" not in text.strip(), f"{what} is not one line: {text!r}"


def within(seconds: float, run: Callable[[], None], otherwise: str) -> None:
    """Run on a thread of its own, so that a device that hangs is a failure and no end of the suite."""
    raised: list[BaseException] = []

    def catch() -> None:
        try:
            run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"{otherwise} within {seconds:.0f} s"
    if raised:
        raise raised[0]
