"""The benchmark's scripts import each other by plain name, as they do when one of them is run."""

import sys
from pathlib import Path

# Last, so that none of them stands before an installed package.
sys.path.append(str(Path(__file__).parents[2] / "bench"))
