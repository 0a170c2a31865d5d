"""Importing this makes this checkout's package importable, also in another engine's environment."""

import sys
from pathlib import Path

# Last, so that an installed package stands before it.
sys.path.append(str(Path(__file__).parents[1] / "core"))
