"""``pageport bench serve``: measure a server under load."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pageport.engine.progress import progress_bar
from pageport.errors import ConfigurationError
from pageport.load.answer import BadAnswer
from pageport.load.arrivals import arrival_times
from pageport.load.config import DatasetConfig, LoadConfig, TargetConfig
from pageport.load.dataset import LoadPrompt, make_prompts
from pageport.load.goodput import parse_objectives
from pageport.load.latency_plot import require_matplotlib, write_plot
from pageport.load.load_run import LoadResult, run_load
from pageport.load.summary import LATENCIES, SHARES, summarise
from pageport.load.target import Target, find_target


def bench_serve(settings: Mapping[str, Any]) -> bool:
    """Run the load, print and write the figures; return whether every request was answered."""
    target_config, dataset, load = (_take(kind, settings) for kind in (TargetConfig, DatasetConfig, LoadConfig))
    objectives = parse_objectives(load.goodput)
    if load.plot is not None:
        require_matplotlib()
    prompts = make_prompts(dataset)
    target, result = asyncio.run(_measure(target_config, dataset, load, prompts))
    shown = {name: value for name, value in settings.items() if name != "api_key"}
    summary = {"model": target.model, "url": target.url, "settings": shown, **summarise(result, objectives)}
    if load.output is not None:
        _write(Path(load.output), summary)
    _print(summary)
    if load.plot is not None and result.answers:
        write_plot(result.answers, Path(load.plot))
    return not result.errors


async def _measure(
    target_config: TargetConfig, dataset: DatasetConfig, load: LoadConfig, prompts: Sequence[LoadPrompt]
) -> tuple[Target, LoadResult]:
    target = await find_target(target_config, prompts)
    for index in range(load.num_warmups):
        try:
            await target.ask(prompts[index % len(prompts)])
        except (BadAnswer, OSError) as error:
            raise ConfigurationError(f"A first request failed: {error}") from error
    due = arrival_times(len(prompts), load.request_rate, load.burstiness, dataset.seed)
    with progress_bar("Requests", is_wanted=load.progress) as on_done:
        result = await run_load(
            target, prompts, due, concurrency=load.concurrency, timeout_s=load.timeout, on_done=on_done
        )
    return target, result


def _take(kind: Any, settings: Mapping[str, Any]) -> Any:
    return kind(**{field.name: settings[field.name] for field in fields(kind)})


def _print(summary: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(
        f"{summary['completed']} of {summary['num_requests']} requests in {summary['duration_s']:.2f} s, "
        f"at most {summary['max_concurrent_requests']} at once; model {summary['model']}"
    )
    console.print(
        f"{summary['request_throughput']:.2f} requests/s, {summary['output_throughput']:.1f} output tokens/s, "
        f"{summary['total_token_throughput']:.1f} tokens/s with {summary['total_input_tokens']} of prompts"
    )
    if "good_share" in summary:
        bounds = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in summary["objectives_ms"].items())
        console.print(
            f"{summary['good_share']:.1%} of the requests were good ({bounds}): {summary['request_goodput']:.2f}/s"
        )
    for kind, count in summary["errors"].items():
        console.print(f"{count} failed, {kind}: {summary['first_error_messages'][kind]}", markup=False)
    if summary["answers_of_another_length"]:
        console.print(f"{summary['answers_of_another_length']} answers had another length than asked for")
    if summary["answers_without_usage"]:
        console.print(f"{summary['answers_without_usage']} answers came without usage: their chunks were counted")
    table = Table("ms", "mean", *SHARES, box=None, pad_edge=False, header_style="bold")
    for name, title in LATENCIES.items():
        values = [summary[f"{statistic}_{name}_ms"] for statistic in ("mean", *SHARES)]
        table.add_row(title, *("–" if value is None else f"{value:.1f}" for value in values))
    console.print(table)


def _write(path: Path, summary: Mapping[str, Any]) -> None:
    # JSON has no infinity, which the request rate may be.
    settings = {name: "inf" if value == math.inf else value for name, value in summary["settings"].items()}
    text = json.dumps({**summary, "settings": settings}, indent=2, allow_nan=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output {path} cannot be written: {error.strerror}.") from error
