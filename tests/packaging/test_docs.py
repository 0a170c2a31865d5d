"""Code blocks in the docs run: every ```python block after an HTML comment `<!-- run -->`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
BLOCKS = [
    pytest.param(code, id=f"{path.name}-{i}")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for i, code in enumerate(BLOCK.findall(path.read_text()))
]


@pytest.mark.smollm2
@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
