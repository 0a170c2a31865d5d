"""``pageport compile``: make a model's programs ready before, and elsewhere than, they are needed."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from pageport.backend.discovery import discover, installed
from pageport.config import EngineConfig
from pageport.engine.backend_options import read_backend_options
from pageport.engine.environment import set_environment
from pageport.engine.progress import progress_bar
from pageport.errors import ConfigurationError

if TYPE_CHECKING:
    from pageport.backend.program import Compilation


def compile_programs(settings: Mapping[str, Any], *, simulates: bool) -> None:
    """Build an engine with what compiles for a device that need not be here, and say what was compiled.

    Args:
        simulates: check every program as the compiler would, on the device that the backend simulates on the host;
            nothing is kept.

    Raises:
        ConfigurationError: no backend is named, or no size of the cache.
        UnsupportedFeature: this backend compiles nothing ahead of time.
        BackendUnavailable: its compiler is not installed.
    """
    config = EngineConfig.from_flat(**settings)
    if config.backend.backend == "auto":
        raise ConfigurationError("Name what to compile for with --backend; pageport backends lists them.")
    if config.cache.num_kv_blocks is None and not simulates:
        raise ConfigurationError(
            "The cache's size is part of every program's shapes, and this machine cannot tell what the device has room "
            "for. Set --num-kv-blocks, here and when serving."
        )
    backend = installed(discover(), config.backend.backend)
    options = read_backend_options(config.backend.backend_options)
    set_environment(backend)
    # First of all, because compilers look at the environment when torch is loaded.
    device = backend().simulate(options) if simulates else backend().open_compiler(options)
    try:
        from pageport.engine.builder import build_engine_on, open_model  # which loads torch

        with progress_bar("Compiling") as report:
            built = build_engine_on(
                device, open_model(config.model), config, backend_name=backend.name, progress=report
            )
        built.engine.close()
        _print(device.compilations)
    finally:
        device.close()


def _print(compilations: "Sequence[Compilation]") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("program")
    for header in ("requests", "tokens", "context", "seconds", "ops"):
        table.add_column(header, justify="right")
    for compilation in compilations:
        requests, tokens, context = compilation.bucket
        kind = "decode" if requests == tokens else "prompt"
        ops = "-" if compilation.num_ops is None else str(compilation.num_ops)
        table.add_row(kind, str(requests), str(tokens), str(context), f"{compilation.seconds:.1f}", ops)
    console = Console()
    console.print(table)
    total = sum(compilation.seconds for compilation in compilations)
    console.print(f"{len(compilations)} programs in {total:.1f} s.", highlight=False)
