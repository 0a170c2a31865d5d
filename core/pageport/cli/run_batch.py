"""``pageport run-batch``: answer an OpenAI batch file, in this process and without a port."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.log import open_log
from pageport.engine.progress import progress_bar
from pageport.errors import ConfigurationError, EngineDead
from pageport.server.config import ServerConfig

if TYPE_CHECKING:
    from pageport.batch_file.batch_output import BatchOutput


def run_batch(
    input_file: Path,
    output_file: Path,
    settings: Mapping[str, Any],
    *,
    server_settings: Mapping[str, Any],
    concurrency: int,
    resumes: bool,
) -> bool:
    """Answer every line and say how it went; return whether all of them succeeded."""
    from pageport.batch_file.batch_line import require_unique_ids

    open_log()
    if concurrency < 1:
        raise ConfigurationError(f"--concurrency is {concurrency}; use at least 1.")
    num_lines = require_unique_ids(input_file)
    config = EngineConfig.from_flat(**settings)
    server_config = ServerConfig(disable_log_requests=True, **server_settings)
    try:
        from pageport.batch_file.batch_output import BatchOutput

        with BatchOutput(output_file, resumes=resumes) as output:
            asyncio.run(_run(config, server_config, input_file, output, num_lines, concurrency))
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"run-batch needs the package {error.name}. Install it with: pip install 'pageport[server]'."
        ) from error
    except KeyboardInterrupt:
        print(f"Stopped. What is answered is in {output_file}; --resume continues.")
        return False
    print(f"{num_lines} requests, {output.num_failed} failed, {len(output.finished_ids)} of them answered before.")
    return not output.num_failed


async def _run(
    config: EngineConfig,
    server_config: ServerConfig,
    input_file: Path,
    output: "BatchOutput",
    num_lines: int,
    concurrency: int,
) -> None:
    from pageport.batch_file.batch_line import read_batch_file
    from pageport.batch_file.batch_run import run_batch as answer_lines
    from pageport.batch_file.in_process_client import InProcessClient
    from pageport.server.app import create_app
    from pageport.server.service import service_of_app

    with progress_bar("Loading the model") as on_loading:
        engine = await AsyncEngine.start(config, on_loading)
    app = create_app(engine, server_config)
    num_done = 0

    def require_engine() -> None:
        if engine.error is not None:
            raise EngineDead(f"{engine.error} The lines without an answer can be asked again with --resume.")

    try:
        with progress_bar("Requests") as report:

            def on_done() -> None:
                nonlocal num_done
                num_done += 1
                report(num_done, num_lines)

            await answer_lines(
                InProcessClient(app),
                read_batch_file(input_file),
                output,
                concurrency=concurrency,
                check=require_engine,
                on_done=on_done,
            )
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        service_of_app(app).close()
        await engine.close()


def _first(group: BaseException) -> BaseException:
    """Return the first error of a group: the others say the same."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
