"""``run_batch``: answer the lines of a file, some at a time."""

import asyncio
from collections.abc import Callable, Iterable

from pageport.batch_file.batch_line import BatchLine
from pageport.batch_file.batch_output import BatchOutput
from pageport.batch_file.in_process_client import InProcessClient


async def run_batch(
    client: InProcessClient,
    lines: Iterable[BatchLine],
    output: BatchOutput,
    *,
    concurrency: int,
    check: Callable[[], None],
    on_done: Callable[[], None],
) -> None:
    """Send every line that has no answer yet and write what comes back, wrong lines included.

    Args:
        concurrency: most requests at once; further lines are not even read.
        check: called after each answer and before it is written; what it raises ends the run.
        on_done: called for each line that is through.
    """
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            if line.custom_id not in output.finished_ids:
                await _answer(client, line, output, check)
            on_done()

    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency):
            workers.create_task(work())


async def _answer(client: InProcessClient, line: BatchLine, output: BatchOutput, check: Callable[[], None]) -> None:
    if line.problem is not None:
        output.write_problem(line)
        return
    answer = await client.post(line.path, line.body)
    check()
    output.write_answer(line, answer)
