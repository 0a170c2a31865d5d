"""The last part: everything the others wrote as one JSON file, and a short table."""

import json
import os
from pathlib import Path
from typing import Any

PARTS = ("check_conformance", "check_models", "time_attention", "time_llama", "time_mixed_run")


def main() -> None:
    folder = Path(os.environ.get("OUT", "build/device"))
    report: dict[str, Any] = {"machine": machine()}
    for part in PARTS:
        found = [
            json.loads(file.read_text())
            for file in (folder / f"{part}.json", folder / f"{part}.exit.json")
            if file.exists()
        ]
        report[part] = {key: value for results in found for key, value in results.items()} or "nothing was written"
    (folder / "device.json").write_text(json.dumps(report, indent=1) + "\n")
    for line in table(report):
        print(line)


def machine() -> dict[str, str]:
    """Return what ran."""
    import torch

    versions = {"torch": torch.__version__, "device": "no GPU"}
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        versions["triton"] = "not installed"
    if torch.cuda.is_available():
        versions["device"] = torch.cuda.get_device_name()
    return versions


def table(report: dict[str, Any]) -> list[str]:
    """Return a line a result, as a Markdown table."""
    lines = ["| part | what | result |", "| --- | --- | --- |"]
    for part, results in report.items():
        for what, value in results.items() if isinstance(results, dict) else [("", results)]:
            text = "; ".join(f"{k} {v}" for k, v in value.items() if v != []) if isinstance(value, dict) else str(value)
            lines.append(f"| {part} | {what} | {text} |")
    return lines


if __name__ == "__main__":
    main()
